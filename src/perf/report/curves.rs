//! The curves of a sweep: a value over the size of an operation, for each of the other settings.

use super::{
    measurand::Measurand,
    operations::{Differences, FigureName, Operations},
    series::Series,
};

/// One curve of a sweep.
#[derive(Debug, Clone)]
pub(crate) struct SweepCurve<'a> {
    /// What this curve has and others have not: "inline".
    pub(crate) name: String,
    /// The settings of all points. Their size is 0.
    pub(crate) settings: Operations,
    /// The size of the operations in bytes, and what was measured: the smallest size first. Each has at least one run.
    pub(crate) points: Vec<(u32, &'a Series)>,
}

impl SweepCurve<'_> {
    /// Returns what was measured for operations of this size.
    pub(crate) fn at(&self, size: u32) -> Option<&Series> {
        let found = self.points.iter().find(|point| point.0 == size);
        found.map(|point| point.1)
    }
}

/// Returns the curves of one figure, in the order in which they were measured.
pub(crate) fn curves(series: &[Series], figure: FigureName) -> Vec<SweepCurve<'_>> {
    let mut curves: Vec<SweepCurve<'_>> = Vec::new();
    for one in series {
        let Measurand::Operations(operations) = one.what else {
            continue;
        };
        if operations.figure != figure || one.runs.is_empty() {
            continue;
        }
        let settings = operations.of_curve();
        let point = (operations.size, one);
        match curves.iter_mut().find(|curve| curve.settings == settings) {
            Some(curve) => curve.points.push(point),
            None => curves.push(SweepCurve {
                name: String::new(),
                settings,
                points: vec![point],
            }),
        }
    }
    let all: Vec<_> = curves.iter().map(|curve| curve.settings).collect();
    let differences = Differences::between(&all);
    for curve in &mut curves {
        curve.name = curve.settings.curve_name(differences);
        curve.points.sort_by_key(|point| point.0);
    }
    curves
}

/// Returns the sizes of all points, each once, the smallest first.
pub(crate) fn sizes(curves: &[SweepCurve<'_>]) -> Vec<u32> {
    let points = curves.iter().flat_map(|curve| &curve.points);
    let mut sizes: Vec<_> = points.map(|point| point.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        super::{
            operations::{InlineName, tests::send_of_64},
            sample::Sample,
        },
        *,
    };

    /// A point of a sweep with these values.
    pub(crate) fn point(what: Operations, values: &[f64]) -> Series {
        let sample = |&value| Sample {
            value,
            ..Sample::default()
        };
        Series {
            from: "h1".to_owned(),
            to: Some("h2".to_owned()),
            what: Measurand::Operations(what),
            runs: values.iter().map(sample).collect(),
        }
    }

    #[test]
    fn points_with_the_same_settings_are_one_curve() {
        let of = |inline, size| Operations {
            inline,
            size,
            ..send_of_64()
        };
        let series = [
            point(of(InlineName::Never, 64), &[3.0]),
            point(of(InlineName::Never, 2), &[2.0]),
            point(of(InlineName::Always, 2), &[1.0]),
            point(of(InlineName::Always, 4), &[]),
        ];
        let curves = curves(&series, FigureName::Time);
        let names: Vec<_> = curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["not inline", "inline"]);
        assert_eq!(sizes(&curves), [2, 64]);
        assert_eq!(curves[0].at(64).and_then(Series::median), Some(3.0));
        assert!(curves[1].at(4).is_none(), "a point without a run");
        assert!(super::curves(&series, FigureName::Rate).is_empty());
    }
}
