//! A chart with bars: the name of each measurement, its bar with the range of its runs, and the figure.

use svg::node::element::Group;

use super::{
    chart::{BarChart, shortened, width},
    drawing::ChartFrame,
    ink::{Anchor, FONT_SIZE, axis, bold, rectangle, text},
    scale::Scale,
};

/// The height of a bar with its space.
const ROW: f64 = 22.0;

/// The space for the title.
const TOP: f64 = 24.0;

/// The space for the figures at the right.
const RIGHT: f64 = 60.0;

/// The most of the width that names take.
const MAX_NAMES: f64 = 330.0;

/// The colour of the bars: a middle grey on paper, too.
const COLOUR: &str = "#56b4e9";

/// Returns the height of a chart in pixels.
pub(super) fn height(chart: &BarChart) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a chart has some ten bars")]
    let rows = chart.bars.len() as f64;
    TOP + rows * ROW
}

/// Draws a chart.
pub(super) fn draw(chart: &BarChart, frame: ChartFrame, group: Group) -> Group {
    let names = chart.bars.iter().map(|bar| width(&bar.name, FONT_SIZE));
    let left = frame.left + names.fold(0.0, f64::max).min(MAX_NAMES) + 10.0;
    let most = chart.bars.iter().map(|bar| bar.value.max(bar.range.1));
    let scale = Scale::from_zero(chart.unit, most.fold(0.0, f64::max));
    let across = |value: f64| left + scale.place(value) * (frame.right - RIGHT - left);
    let title = format!("{}, {}", chart.title, scale.unit());
    let mut group = group.add(bold(text(
        (frame.left, frame.top + FONT_SIZE),
        Anchor::Start,
        &title,
    )));
    let mut y = frame.top + TOP;
    for bar in &chart.bars {
        let middle = y + ROW / 2.0;
        let (low, high) = (across(bar.range.0), across(bar.range.1));
        let end = across(bar.value);
        group = group
            .add(text(
                (left - 8.0, middle + FONT_SIZE / 3.0),
                Anchor::End,
                &shortened(&bar.name, MAX_NAMES, FONT_SIZE),
            ))
            .add(rectangle((left, y + 4.0), (end - left, ROW - 8.0), COLOUR))
            .add(axis((low, middle), (high, middle)))
            .add(axis((low, middle - 4.0), (low, middle + 4.0)))
            .add(axis((high, middle - 4.0), (high, middle + 4.0)))
            .add(text(
                (high.max(end) + 6.0, middle + FONT_SIZE / 3.0),
                Anchor::Start,
                &scale.figure(bar.value),
            ));
        y += ROW;
    }
    group.add(axis((left, frame.top + TOP), (left, y)))
}
