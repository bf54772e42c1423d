//! The places of labels: near what they name, and none over another one.

/// Moves labels apart that would overlap. `wanted` has the height at which each label should be, from the top; the result has
/// heights between `top` and `bottom` that are at least `distance` apart, in the same order.
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
