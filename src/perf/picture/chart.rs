//! Charts: what a picture shows, before it is drawn.

/// A picture: charts below each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Picture {
    /// What was measured, and between which hosts.
    pub(crate) title: String,
    /// What has to be known to read the figures: devices and processors.
    pub(crate) subtitles: Vec<String>,
    pub(crate) charts: Vec<Chart>,
}

/// One chart of a picture.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chart {
    Curves(CurveChart),
    Bars(BarChart),
}

/// A value over the size of an operation, for each of several settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CurveChart {
    pub(crate) title: String,
    pub(crate) x: AxisUnit,
    pub(crate) y: AxisUnit,
    pub(crate) curves: Vec<Curve>,
}

/// One curve of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Curves with the same number have the same colour and marker.
    pub(crate) style: usize,
    /// True for a curve that accompanies another one: a high percentile beside the median.
    pub(crate) is_minor: bool,
    pub(crate) points: Vec<CurvePoint>,
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CurvePoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The least and the greatest value of all runs.
    pub(crate) range: Option<(f64, f64)>,
}

/// One value for each of several measurements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BarChart {
    pub(crate) title: String,
    pub(crate) unit: AxisUnit,
    pub(crate) bars: Vec<Bar>,
}

/// One bar of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// The least and the greatest value of all runs.
    pub(crate) range: (f64, f64),
}

/// What an axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AxisUnit {
    /// A size in bytes, on a scale of powers of 2.
    Bytes,
    /// A time in microseconds.
    Micros,
    /// Bytes per second.
    BytesPerSecond,
    /// Operations per second.
    OperationsPerSecond,
    /// A percentile: the places are those of [`PERCENTILES`].
    Percentile,
}

/// The places on the axis of a chart of percentiles, and the percentiles there. The last one is the maximum.
pub(crate) const PERCENTILES: [(f64, f64); 5] = [
    (0.0, 50.0),
    (1.0, 90.0),
    (2.0, 99.0),
    (3.0, 99.9),
    (4.0, 100.0),
];

/// Moves labels apart that would overlap. `wanted` has the height at which each label should be, from the top; the
/// result has heights between `top` and `bottom` that are at least `distance` apart, in the same order.
pub(super) fn apart(wanted: &[f64], distance: f64, top: f64, bottom: f64) -> Vec<f64> {
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

/// Returns about how wide a text is, in pixels, at a font size in pixels. No font is known, so it is rather too much.
pub(super) fn width(text: &str, font: f64) -> f64 {
    let count = text.chars().count();
    #[allow(
        clippy::cast_precision_loss,
        reason = "a label has some ten characters"
    )]
    let count = count as f64;
    count * font * 0.58
}

/// Returns a text that is no wider than `room` pixels: where it is too long, an ellipsis stands in its middle.
pub(super) fn shortened(text: &str, room: f64, font: f64) -> String {
    if width(text, font) <= room {
        return text.to_owned();
    }
    let chars: Vec<_> = text.chars().collect();
    let mut kept = chars.len();
    let short = |kept: usize| {
        let (first, last) = (kept.div_ceil(2), kept / 2);
        let tail = &chars[chars.len() - last..];
        chars[..first]
            .iter()
            .chain(&['…'])
            .chain(tail)
            .collect::<String>()
    };
    while kept > 0 && width(&short(kept), font) > room {
        kept -= 1;
    }
    short(kept)
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
        assert!(width(&short, 12.0) <= 100.0);
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
