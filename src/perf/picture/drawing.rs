//! A picture as SVG: a title, and below it charts with curves and charts with bars.

use maud::{Markup, html};

use super::{AxisUnit, Bar, BarChart, Chart, Curve, CurveChart, Picture, scale::Scale};
use crate::printable::is_printable;

/// A point in pixels, from the left and from the top.
type Point = (f64, f64);

/// The width of a picture in pixels: half of a wide screen, and a page when printed.
const WIDTH: f64 = 860.0;

/// The space around everything.
const MARGIN: f64 = 16.0;

/// The height of a line of text.
const LINE: f64 = 17.0;

/// The font of all texts: one that every system has.
const FONT: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// The height of texts in pixels.
const FONT_SIZE: f64 = 12.0;

/// The distance from the middle of a text down to its baseline.
const BASELINE: f64 = FONT_SIZE / 3.0;

/// The width of a character in parts of the height. No font is known, so it is rather too much.
const CHARACTER: f64 = 0.58;

/// The colour of axes.
const GREY: &str = "#555555";

/// The colour of grids.
const LIGHT: &str = "#dddddd";

/// Returns the text of an SVG file.
pub(crate) fn svg(picture: &Picture) -> String {
    let room = WIDTH - 2.0 * MARGIN;
    let mut y = MARGIN + FONT_SIZE;
    let title = shortened(&picture.title, room, FONT_SIZE * 1.1);
    let mut parts = vec![bold((MARGIN, y), &title)];
    for subtitle in &picture.subtitles {
        y += LINE;
        let subtitle = shortened(subtitle, room, FONT_SIZE);
        parts.push(text((MARGIN, y), "start", &subtitle));
    }
    y += LINE;
    for chart in &picture.charts {
        let (height, chart) = match chart {
            Chart::Curves(chart) => curves(chart, y),
            Chart::Bars(chart) => bars(chart, y),
        };
        parts.push(chart);
        y += height + LINE;
    }
    let size = format!("0 0 {WIDTH} {y}");
    let markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(size) width=(WIDTH) height=(y)
            font-family=(FONT) font-size=(FONT_SIZE) {
            // Readers with a dark screen need a ground.
            (rectangle((0.0, 0.0), (WIDTH, y), "#ffffff"))
            @for part in parts { (part) }
        }
    };
    markup.into_string() + "\n"
}

/// The least height of a chart with curves in pixels.
const HEIGHT: f64 = 330.0;

/// The space for the texts of the vertical axis.
const LEFT: f64 = 58.0;

/// The space for the title of a chart.
const TOP: f64 = 28.0;

/// The space for the texts of the horizontal axis.
const BOTTOM: f64 = 40.0;

/// The height of the name of a curve.
const LABEL: f64 = FONT_SIZE + 3.0;

/// The space between the plot and the names, with the line that leads to each.
const LEADER: f64 = 26.0;

/// The space between the end of the axis and the first and the last tick.
const INSET: f64 = 8.0;

/// The place of curves, and the scales of the axes.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale,
    y: Scale,
}

impl Plot {
    fn across(&self, x: f64) -> f64 {
        let width = self.right - self.left - 2.0 * INSET;
        self.left + INSET + self.x.place(x) * width
    }

    fn down(&self, y: f64) -> f64 {
        self.bottom - self.y.place(y) * (self.bottom - self.top)
    }
}

/// Draws grid, axes and curves, and the name of each curve at its end. Returns the height too, with room for all names.
fn curves(chart: &CurveChart, top: f64) -> (f64, Markup) {
    let height = HEIGHT.max(TOP + number(chart.curves.len()) * LABEL + BOTTOM);
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let ys = points().flat_map(|point| {
        let (low, high) = point.range.unwrap_or((point.y, point.y));
        [low, point.y, high]
    });
    let plot = Plot {
        left: MARGIN + LEFT,
        right: WIDTH - MARGIN - LEADER - widest(chart.curves.iter().map(|curve| &curve.name)),
        top: top + TOP,
        bottom: top + height - BOTTOM,
        x: Scale::of(chart.x, points().map(|point| point.x)),
        y: Scale::of(chart.y, ys),
    };
    let title = format!("{}, {}", chart.title, plot.y.unit());
    let markup = html! {
        (bold((MARGIN, top + FONT_SIZE), &title))
        (axes(&plot, chart.x))
        @for curve in &chart.curves { (draw_curve(curve, &plot)) }
        (labels(&chart.curves, &plot))
    };
    (height, markup)
}

fn axes(plot: &Plot, x_unit: AxisUnit) -> Markup {
    let &Plot {
        left,
        right,
        top,
        bottom,
        ..
    } = plot;
    let name = match x_unit {
        AxisUnit::Percentile => "percentile of all times",
        _ => "size",
    };
    html! {
        @for (value, words) in plot.y.ticks() {
            @let y = plot.down(value);
            (line((left, y), (right, y), LIGHT))
            (text((left - 6.0, y + BASELINE), "end", &words))
        }
        @for (value, words) in plot.x.ticks() {
            @let x = plot.across(value);
            (line((x, bottom), (x, bottom + 4.0), GREY))
            (text((x, bottom + 5.0 + FONT_SIZE), "middle", &words))
        }
        (line((left, bottom), (right, bottom), GREY))
        (line((left, top), (left, bottom), GREY))
        (text((f64::midpoint(left, right), bottom + 8.0 + 2.0 * FONT_SIZE), "middle", name))
    }
}

/// The colours of curves: those of Okabe and Ito, which colour-blind readers can tell apart, the darkest first.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00",
];

/// The dashes of curves, so that they differ without colours too. There are five markers: with four dashes, twenty
/// curves differ.
const DASHES: [&str; 4] = ["none", "9 4", "4 3", "12 3 3 3"];

/// The corners of the markers, in parts of their size. The first marker is a circle.
const MARKERS: [&[Point]; 5] = [
    &[],
    &[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
    &[(0.0, -1.3), (1.2, 1.0), (-1.2, 1.0)],
    &[(0.0, 1.3), (1.2, -1.0), (-1.2, -1.0)],
    &[(0.0, -1.4), (1.2, 0.0), (0.0, 1.4), (-1.2, 0.0)],
];

fn colour(curve: &Curve) -> &'static str {
    COLOURS[curve.style % COLOURS.len()]
}

/// Draws the line of a curve, and at each point its marker and the range of its runs. A minor curve is thin, with small
/// hollow markers.
fn draw_curve(curve: &Curve, plot: &Plot) -> Markup {
    let points = curve.points.iter();
    let points: Vec<_> = points
        .map(|point| (plot.across(point.x), plot.down(point.y)))
        .collect();
    let colour = colour(curve);
    let (thickness, dashes, fill, radius) = if curve.is_minor {
        (1, "1 3", "#ffffff", 3.0)
    } else {
        (2, DASHES[curve.style % DASHES.len()], colour, 4.0)
    };
    html! {
        g fill="none" stroke=(colour) stroke-width=(thickness) stroke-dasharray=(dashes) {
            @if points.len() > 1 { polyline points=(list(&points)) {} }
        }
        g stroke-opacity="0.6" {
            @for (point, (x, _)) in curve.points.iter().zip(&points) {
                @if let Some((low, high)) = point.range {
                    (line((*x, plot.down(low)), (*x, plot.down(high)), colour))
                }
            }
        }
        g fill=(fill) stroke=(colour) {
            @for point in &points { (marker(curve.style, *point, radius)) }
        }
    }
}

fn marker(style: usize, (x, y): Point, radius: f64) -> Markup {
    let corners = MARKERS[style % MARKERS.len()].iter();
    let corners: Vec<_> = corners
        .map(|corner| (x + corner.0 * radius, y + corner.1 * radius))
        .collect();
    html! {
        @if corners.is_empty() {
            circle cx=(pixels(x)) cy=(pixels(y)) r=(radius) {}
        } @else {
            polygon points=(list(&corners)) {}
        }
    }
}

/// Draws the name of each curve beside its last point.
fn labels(curves: &[Curve], plot: &Plot) -> Markup {
    let ends = curves.iter().filter_map(|curve| {
        let last = curve.points.last()?;
        Some((curve, (plot.across(last.x), plot.down(last.y))))
    });
    let ends: Vec<_> = ends.collect();
    let wanted: Vec<_> = ends.iter().map(|(_, (_, y))| *y).collect();
    let places = apart(&wanted, LABEL, plot.top, plot.bottom);
    let begin = plot.right + LEADER - 8.0;
    html! {
        @for ((curve, (x, y)), place) in ends.iter().zip(places) {
            (line((x + 6.0, *y), (begin - 3.0, place), colour(curve)))
            // Not in the colour of the curve: some are too light for a text.
            (text((begin, place + BASELINE), "start", &curve.name))
        }
    }
}

/// The height of a bar with its space.
const ROW: f64 = 22.0;

const BAR: f64 = 14.0;

/// The space for the title of a chart with bars.
const BARS_TOP: f64 = 24.0;

/// The space for the figures at the right of bars.
const FIGURES: f64 = 60.0;

/// The most of the width that the names of bars take.
const MAX_NAMES: f64 = 330.0;

/// The colour of bars: a middle grey on paper, too.
const BAR_COLOUR: &str = "#56b4e9";

/// Draws for each measurement its name, its bar with the range of its runs, and the figure. Returns the height too.
fn bars(chart: &BarChart, top: f64) -> (f64, Markup) {
    let height = BARS_TOP + number(chart.bars.len()) * ROW;
    let names = widest(chart.bars.iter().map(|bar| &bar.name));
    let left = MARGIN + names.min(MAX_NAMES) + 10.0;
    let most = chart.bars.iter().map(|bar| bar.value.max(bar.range.1));
    let scale = Scale::from_zero(chart.unit, most.fold(0.0, f64::max));
    let title = format!("{}, {}", chart.title, scale.unit());
    let first = top + BARS_TOP;
    let markup = html! {
        (bold((MARGIN, top + FONT_SIZE), &title))
        @for (bar, row) in chart.bars.iter().zip(0_u32..) {
            (draw_bar(bar, &scale, left, first + (f64::from(row) + 0.5) * ROW))
        }
        (line((left, first), (left, top + height), GREY))
    };
    (height, markup)
}

fn draw_bar(bar: &Bar, scale: &Scale, left: f64, middle: f64) -> Markup {
    let across = |value: f64| left + scale.place(value) * (WIDTH - MARGIN - FIGURES - left);
    let (low, high) = (across(bar.range.0), across(bar.range.1));
    let end = across(bar.value);
    let name = shortened(&bar.name, MAX_NAMES, FONT_SIZE);
    html! {
        (text((left - 8.0, middle + BASELINE), "end", &name))
        (rectangle((left, middle - BAR / 2.0), (end - left, BAR), BAR_COLOUR))
        (line((low, middle), (high, middle), GREY))
        @for end in [low, high] {
            (line((end, middle - 4.0), (end, middle + 4.0), GREY))
        }
        (text((high.max(end) + 6.0, middle + BASELINE), "start", &scale.figure(bar.value)))
    }
}

fn line((x1, y1): Point, (x2, y2): Point, colour: &str) -> Markup {
    html! {
        line x1=(pixels(x1)) y1=(pixels(y1)) x2=(pixels(x2)) y2=(pixels(y2)) stroke=(colour) {}
    }
}

fn rectangle((x, y): Point, (width, height): (f64, f64), colour: &str) -> Markup {
    html! {
        rect x=(pixels(x)) y=(pixels(y)) width=(pixels(width)) height=(pixels(height)) fill=(colour) {}
    }
}

/// Draws a text. Its anchor (`start`, `middle` or `end`) is at the point, on the baseline.
fn text((x, y): Point, anchor: &str, words: &str) -> Markup {
    // XML has no control characters.
    let is_text = |c: char| is_printable(c) && !('\u{fffe}'..='\u{ffff}').contains(&c);
    let words: String = words
        .chars()
        .map(|c| if is_text(c) { c } else { ' ' })
        .collect();
    html! { text x=(pixels(x)) y=(pixels(y)) text-anchor=(anchor) { (words) } }
}

/// Draws a text that stands out, from this point on.
fn bold(point: Point, words: &str) -> Markup {
    html! { g font-weight="bold" { (text(point, "start", words)) } }
}

fn pixels(value: f64) -> String {
    format!("{value:.1}")
}

fn list(points: &[Point]) -> String {
    let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    points.collect::<Vec<_>>().join(" ")
}

fn number(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

/// Returns about how wide the widest of these texts is, in pixels.
fn widest<'a>(texts: impl Iterator<Item = &'a String>) -> f64 {
    let most = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    number(most) * CHARACTER * FONT_SIZE
}

/// Returns a text that is no wider than `room` pixels: where it is too long, an ellipsis stands in its middle.
fn shortened(text: &str, room: f64, font: f64) -> String {
    let chars: Vec<_> = text.chars().collect();
    let fits = (0..=chars.len())
        .rev()
        .find(|&count| number(count) * CHARACTER * font <= room);
    let fits = fits.unwrap_or(0);
    if fits == chars.len() {
        return text.to_owned();
    }
    let kept = fits.saturating_sub(1);
    let (head, tail) = (&chars[..kept.div_ceil(2)], &chars[chars.len() - kept / 2..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// Moves labels apart that would overlap. `wanted` has the height at which each label should be, from the top; the
/// result has heights between `top` and `bottom` that are at least `distance` apart, in the same order.
fn apart(wanted: &[f64], distance: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<_> = (0..wanted.len()).collect();
    order.sort_by(|&one, &other| wanted[one].total_cmp(&wanted[other]));
    let mut places = vec![0.0; wanted.len()];
    let mut least = top;
    for &label in &order {
        places[label] = wanted[label].max(least);
        least = places[label] + distance;
    }
    // Those at the bottom push the others up again.
    let mut most = bottom;
    for &label in order.iter().rev() {
        places[label] = places[label].min(most);
        most = places[label] - distance;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_ends() {
        assert_eq!(shortened("short", 100.0, 12.0), "short");
        let long = "/a/very/long/path/to/some/file";
        let short = shortened(long, 100.0, 12.0);
        assert!(
            short.starts_with("/a/ver") && short.ends_with("e/file"),
            "{short}"
        );
        assert!(widest([short].iter()) <= 100.0);
        assert_eq!(shortened("text", 0.0, 12.0), "…");
    }

    #[test]
    fn labels_do_not_overlap_and_keep_their_order() {
        let places = apart(&[50.0, 52.0, 10.0, 99.0, 98.0], 14.0, 0.0, 100.0);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(
            sorted.windows(2).all(|pair| pair[1] - pair[0] >= 13.999),
            "{places:?}"
        );
        assert!(
            places.iter().all(|place| (0.0..=100.0).contains(place)),
            "{places:?}"
        );
        assert!(places[0] < places[1] && places[4] < places[3]);
        assert!(
            (places[2] - 10.0).abs() < 1e-9,
            "a label that is alone stays"
        );
    }
}
