//! The tables of a sweep: a row for each size, and for each curve its figures. Pure, no I/O.

use super::text_table::{TextTable, digits};
use crate::perf::report::{
    curves::{SweepCurve, curves, sizes},
    operations::FigureName,
    sample::micros,
    series::Series,
    size_text::SizeText,
};

/// Returns the tables of a sweep.
pub(super) fn sweep_tables(series: &[Series]) -> Vec<TextTable> {
    let figures = [
        (FigureName::Time, "there and back, µs"),
        (FigureName::Rate, "throughput"),
    ];
    let table = |(figure, title)| {
        let curves = curves(series, figure);
        (!curves.is_empty()).then(|| sweep_table(&curves, figure, title))
    };
    figures.into_iter().filter_map(table).collect()
}

fn sweep_table(curves: &[SweepCurve<'_>], figure: FigureName, title: &'static str) -> TextTable {
    let mut table = TextTable::titled(title);
    let mut heading = vec!["size".to_owned()];
    for curve in curves {
        let columns = match figure {
            FigureName::Time => ["p50", "p99", "CPU"],
            FigureName::Rate => ["MB/s", "ops/s", "CPU"],
        };
        heading.extend(columns.map(str::to_owned));
        table.group(&curve.name, columns.len());
    }
    table.row(heading);
    for size in sizes(curves) {
        let mut row = vec![SizeText(size).to_string()];
        for curve in curves {
            row.extend(match curve.at(size) {
                None => ["-", "", ""].map(str::to_owned),
                Some(series) if figure == FigureName::Time => time_cells(series),
                Some(series) => rate_cells(series, size),
            });
        }
        table.row(row);
    }
    table
}

/// Returns the median and the 99th percentile of all times, and the processors that were busy at the end that dials.
fn time_cells(series: &Series) -> [String; 3] {
    let histogram = series.histogram();
    let time = |percentile| {
        let histogram = histogram.as_ref();
        histogram.map_or_else(String::new, |histogram| {
            digits(micros(histogram.percentile(percentile)))
        })
    };
    let busy = series.median_of(|run| Some(run.cpu_dialer));
    [time(50.0), time(99.0), share(busy)]
}

/// Returns the median of the rates, the operations per second, and the processors that were busy at the end that dials.
fn rate_cells(series: &Series, size: u32) -> [String; 3] {
    let rate = series.median().unwrap_or(0.0);
    // Seconds per gigabyte, times gigabytes per second.
    let busy = series.median_of(|run| Some(run.cpu_dialer * run.value / 1e9));
    [
        digits(rate / 1e6),
        format!("{:.0}", rate / f64::from(size)),
        share(busy),
    ]
}

fn share(busy: Option<f64>) -> String {
    busy.map_or_else(String::new, |busy| format!("{busy:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::{
        curves::tests::point,
        operations::{InlineName, Operations, tests::send_of_64},
    };

    #[test]
    fn each_size_has_a_row_and_each_curve_its_columns() {
        let of = |inline, size| Operations {
            figure: FigureName::Rate,
            inline,
            size,
            ..send_of_64()
        };
        let series = [
            point(of(InlineName::Never, 64), &[64e6, 128e6, 640e6]),
            point(of(InlineName::Never, 1024), &[1.024e9]),
            point(of(InlineName::Always, 64), &[192e6]),
        ];
        let tables = sweep_tables(&series);
        assert_eq!(tables.len(), 1);
        assert_eq!(
            tables[0].lines(),
            [
                "throughput",
                "                not inline               inline",
                "size   MB/s    ops/s   CPU  MB/s    ops/s   CPU",
                "64 B    128  2000000  0.00   192  3000000  0.00",
                "1 KiB  1024  1000000  0.00     -",
            ]
        );
    }
}
