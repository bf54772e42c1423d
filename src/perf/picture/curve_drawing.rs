//! A chart with curves: grid, axes, curves, and the name of each at its end.

use svg::node::element::Group;

use super::{
    chart::{AxisUnit, Curve, CurveChart, apart, width},
    drawing::ChartFrame,
    ink::{Anchor, CurveInk, FONT_SIZE, axis, bold, grid, text},
    scale::Scale,
};

/// The least height of a chart in pixels.
const HEIGHT: f64 = 330.0;

/// The space for the texts of the vertical axis.
const LEFT: f64 = 58.0;

/// The space for the title.
const TOP: f64 = 28.0;

/// The space for the texts of the horizontal axis.
const BOTTOM: f64 = 40.0;

/// The height of a label.
const LABEL: f64 = FONT_SIZE + 3.0;

/// The space between the plot and the labels, with the line that leads to each.
const LEADER: f64 = 26.0;

/// The space between the end of the axis and the first and the last tick.
const INSET: f64 = 8.0;

/// The plot, and the scales of its axes.
struct Plot {
    frame: ChartFrame,
    x: Scale,
    y: Scale,
}

impl Plot {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.across(x), self.down(y))
    }

    fn across(&self, x: f64) -> f64 {
        let width = self.frame.right - self.frame.left - 2.0 * INSET;
        self.frame.left + INSET + self.x.place(x) * width
    }

    fn down(&self, y: f64) -> f64 {
        self.frame.bottom - self.y.place(y) * (self.frame.bottom - self.frame.top)
    }
}

/// Returns the height of a chart in pixels: there is room for the names of all curves.
pub(super) fn height(chart: &CurveChart) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a chart has some ten curves")]
    let labels = chart.curves.len() as f64 * LABEL;
    HEIGHT.max(TOP + labels + BOTTOM)
}

/// Draws a chart.
pub(super) fn draw(chart: &CurveChart, frame: ChartFrame, group: Group) -> Group {
    let names = chart.curves.iter();
    let widest = names.map(|curve| width(&curve.name, FONT_SIZE));
    let widest = widest.fold(0.0, f64::max);
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let ys = points().flat_map(|point| {
        let (low, high) = point.range.unwrap_or((point.y, point.y));
        [low, point.y, high]
    });
    let plot = Plot {
        frame: ChartFrame {
            left: frame.left + LEFT,
            right: frame.right - LEADER - widest,
            top: frame.top + TOP,
            bottom: frame.bottom - BOTTOM,
        },
        x: Scale::of(chart.x, points().map(|point| point.x)),
        y: Scale::of(chart.y, ys),
    };
    let title = format!("{}, {}", chart.title, plot.y.unit());
    let mut group = group.add(bold(text(
        (frame.left, frame.top + FONT_SIZE),
        Anchor::Start,
        &title,
    )));
    group = axes(&plot, chart.x, group);
    for curve in &chart.curves {
        group = draw_curve(curve, &plot, group);
    }
    draw_labels(&chart.curves, &plot, group)
}

fn axes(plot: &Plot, x: AxisUnit, mut group: Group) -> Group {
    let ChartFrame {
        left,
        right,
        top,
        bottom,
    } = plot.frame;
    for (value, words) in plot.y.ticks() {
        let y = plot.down(value);
        group = group.add(grid((left, y), (right, y))).add(text(
            (left - 6.0, y + FONT_SIZE / 3.0),
            Anchor::End,
            &words,
        ));
    }
    for (value, words) in plot.x.ticks() {
        let x = plot.across(value);
        group = group.add(axis((x, bottom), (x, bottom + 4.0))).add(text(
            (x, bottom + 5.0 + FONT_SIZE),
            Anchor::Middle,
            &words,
        ));
    }
    let name = match x {
        AxisUnit::Percentile => "percentile of all times",
        _ => "size",
    };
    let middle = f64::midpoint(left, right);
    group
        .add(axis((left, bottom), (right, bottom)))
        .add(axis((left, top), (left, bottom)))
        .add(text(
            (middle, bottom + 8.0 + 2.0 * FONT_SIZE),
            Anchor::Middle,
            name,
        ))
}

fn draw_curve(curve: &Curve, plot: &Plot, mut group: Group) -> Group {
    let ink = CurveInk::new(curve.style, curve.is_minor);
    let points = curve.points.iter();
    let points: Vec<_> = points.map(|point| plot.at(point.x, point.y)).collect();
    if points.len() > 1 {
        group = group.add(ink.line(&points));
    }
    for (point, (x, y)) in curve.points.iter().zip(points) {
        if let Some((low, high)) = point.range {
            group = group.add(ink.range(x, plot.down(low), plot.down(high)));
        }
        group = group.add(ink.marker(x, y));
    }
    group
}

/// Draws the name of each curve beside its last point.
fn draw_labels(curves: &[Curve], plot: &Plot, mut group: Group) -> Group {
    let ends = curves.iter().filter_map(|curve| {
        let last = curve.points.last()?;
        Some((curve, plot.at(last.x, last.y)))
    });
    let ends: Vec<_> = ends.collect();
    let wanted: Vec<_> = ends.iter().map(|(_, (_, y))| *y).collect();
    let places = apart(&wanted, LABEL, plot.frame.top, plot.frame.bottom);
    for ((curve, (x, y)), place) in ends.into_iter().zip(places) {
        let ink = CurveInk::new(curve.style, curve.is_minor);
        let begin = plot.frame.right + LEADER - 8.0;
        group = group
            .add(ink.leader((x + 6.0, y), (begin - 3.0, place)))
            // Not in the colour of the curve: some are too light for a text.
            .add(text(
                (begin, place + FONT_SIZE / 3.0),
                Anchor::Start,
                &curve.name,
            ));
    }
    group
}
