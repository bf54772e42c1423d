//! Lines, texts, colours and markers.

use svg::node::element::{Element, Group};

/// The font of all texts: one that every system has.
const FONT: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// The height of texts in pixels.
pub(super) const FONT_SIZE: f64 = 12.0;

/// The colours of curves: those of Okabe and Ito, which colour-blind readers can tell apart, the darkest first.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00",
];

/// The dashes of curves, so that they differ without colours too. There are five markers: with four dashes, twenty
/// curves differ.
const DASHES: [&str; 4] = ["none", "9 4", "4 3", "12 3 3 3"];

/// The colour of axes.
const GREY: &str = "#555555";

/// The colour of grids.
const LIGHT: &str = "#dddddd";

/// Where a text is beside its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The colour, the dashes and the marker of a curve.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurveInk {
    style: usize,
    is_minor: bool,
}

impl CurveInk {
    pub(super) fn new(style: usize, is_minor: bool) -> Self {
        Self { style, is_minor }
    }

    fn colour(self) -> &'static str {
        COLOURS[self.style % COLOURS.len()]
    }

    /// Returns a line through these points.
    pub(super) fn line(self, points: &[(f64, f64)]) -> Element {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
        let points: Vec<_> = points.collect();
        let mut line = Element::new("polyline");
        set(&mut line, "points", points.join(" "));
        set(&mut line, "fill", "none");
        set(&mut line, "stroke", self.colour());
        let (width, dashes) = if self.is_minor {
            (1.0, "1 3")
        } else {
            (2.0, DASHES[self.style % DASHES.len()])
        };
        set(&mut line, "stroke-width", width);
        set(&mut line, "stroke-dasharray", dashes);
        line
    }

    /// Returns the marker of a point: filled, or hollow for a minor curve.
    pub(super) fn marker(self, x: f64, y: f64) -> Element {
        let r = if self.is_minor { 3.0 } else { 4.0 };
        let mut marker = match self.style % 5 {
            0 => {
                let mut circle = Element::new("circle");
                set(&mut circle, "cx", format!("{x:.1}"));
                set(&mut circle, "cy", format!("{y:.1}"));
                set(&mut circle, "r", r);
                circle
            }
            1 => polygon(&[
                (x - r, y - r),
                (x + r, y - r),
                (x + r, y + r),
                (x - r, y + r),
            ]),
            2 => polygon(&[(x, y - r * 1.3), (x + r * 1.2, y + r), (x - r * 1.2, y + r)]),
            3 => polygon(&[(x, y + r * 1.3), (x + r * 1.2, y - r), (x - r * 1.2, y - r)]),
            _ => polygon(&[
                (x, y - r * 1.4),
                (x + r * 1.2, y),
                (x, y + r * 1.4),
                (x - r * 1.2, y),
            ]),
        };
        let fill = if self.is_minor {
            "#ffffff"
        } else {
            self.colour()
        };
        set(&mut marker, "fill", fill);
        set(&mut marker, "stroke", self.colour());
        marker
    }

    /// Returns the thin line from the end of a curve to its name.
    pub(super) fn leader(self, from: (f64, f64), to: (f64, f64)) -> Element {
        line(from, to, self.colour())
    }

    /// Returns the range of a point.
    pub(super) fn range(self, x: f64, low: f64, high: f64) -> Element {
        let mut range = line((x, low), (x, high), self.colour());
        set(&mut range, "stroke-opacity", 0.6);
        range
    }
}

/// Returns a line of an axis.
pub(super) fn axis(from: (f64, f64), to: (f64, f64)) -> Element {
    line(from, to, GREY)
}

/// Returns a line of a grid.
pub(super) fn grid(from: (f64, f64), to: (f64, f64)) -> Element {
    line(from, to, LIGHT)
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) -> Element {
    let mut line = Element::new("line");
    for (name, value) in [("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)] {
        set(&mut line, name, format!("{value:.1}"));
    }
    set(&mut line, "stroke", colour);
    set(&mut line, "stroke-width", 1);
    line
}

/// Returns a rectangle.
pub(super) fn rectangle((x, y): (f64, f64), (width, height): (f64, f64), colour: &str) -> Element {
    let mut rectangle = Element::new("rect");
    for (name, value) in [("x", x), ("y", y), ("width", width), ("height", height)] {
        set(&mut rectangle, name, format!("{value:.1}"));
    }
    set(&mut rectangle, "fill", colour);
    rectangle
}

fn polygon(points: &[(f64, f64)]) -> Element {
    let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    let points: Vec<_> = points.collect();
    let mut polygon = Element::new("polygon");
    set(&mut polygon, "points", points.join(" "));
    polygon
}

/// Returns a text at a point, which is at its baseline.
pub(super) fn text((x, y): (f64, f64), anchor: Anchor, words: &str) -> Element {
    let mut text = Element::new("text");
    set(&mut text, "x", format!("{x:.1}"));
    set(&mut text, "y", format!("{y:.1}"));
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    set(&mut text, "text-anchor", anchor);
    // XML has no control characters.
    let words: String = words
        .chars()
        .map(|c| {
            if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) {
                ' '
            } else {
                c
            }
        })
        .collect();
    svg::Node::append(&mut text, svg::node::Text::new(words));
    text
}

/// Makes a text stand out.
pub(super) fn bold(mut text: Element) -> Element {
    set(&mut text, "font-weight", "bold");
    text
}

/// Returns the group of all parts of a picture.
pub(super) fn paper() -> Group {
    let mut group = Group::new();
    svg::Node::assign(&mut group, "font-family", FONT);
    svg::Node::assign(&mut group, "font-size", FONT_SIZE);
    group
}

fn set(element: &mut Element, name: &str, value: impl Into<svg::node::Value>) {
    svg::Node::assign(element, name, value);
}
