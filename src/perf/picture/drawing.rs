//! A picture as SVG: a title, and charts below each other.

use svg::{Document, node::element::Group};

use super::{
    bar_drawing,
    chart::{Chart, Picture, shortened},
    curve_drawing,
    ink::{Anchor, FONT_SIZE, bold, paper, rectangle, text},
};

/// The width of a picture in pixels: half of a wide screen, and a page when printed.
pub(super) const WIDTH: f64 = 860.0;

/// The space around everything.
pub(super) const MARGIN: f64 = 16.0;

/// The height of a line of text.
const LINE: f64 = 17.0;

/// Returns the text of an SVG file.
pub(crate) fn svg(picture: &Picture) -> String {
    let mut group = paper();
    let mut y = MARGIN + FONT_SIZE;
    group = group.add(bold(text(
        (MARGIN, y),
        Anchor::Start,
        &shortened(&picture.title, WIDTH - 2.0 * MARGIN, FONT_SIZE * 1.1),
    )));
    for subtitle in &picture.subtitles {
        y += LINE;
        let line = shortened(subtitle, WIDTH - 2.0 * MARGIN, FONT_SIZE);
        group = group.add(text((MARGIN, y), Anchor::Start, &line));
    }
    y += LINE;
    for chart in &picture.charts {
        let height = match chart {
            Chart::Curves(chart) => curve_drawing::height(chart),
            Chart::Bars(chart) => bar_drawing::height(chart),
        };
        let frame = ChartFrame {
            left: MARGIN,
            right: WIDTH - MARGIN,
            top: y,
            bottom: y + height,
        };
        group = match chart {
            Chart::Curves(chart) => curve_drawing::draw(chart, frame, group),
            Chart::Bars(chart) => bar_drawing::draw(chart, frame, group),
        };
        y += height + LINE;
    }
    finished(group, y)
}

fn finished(group: Group, height: f64) -> String {
    let document = Document::new()
        .set("viewBox", format!("0 0 {WIDTH} {height}"))
        .set("width", WIDTH)
        .set("height", height)
        // Readers with a dark screen need a ground.
        .add(rectangle((0.0, 0.0), (WIDTH, height), "#ffffff"))
        .add(group);
    format!("{document}\n")
}

/// The place of a chart in its picture, in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChartFrame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}
