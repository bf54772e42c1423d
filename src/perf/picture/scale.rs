//! Scales: from a value to its place on an axis, and the ticks of an axis.

use super::{AxisUnit, PERCENTILES};
use crate::perf::report::SizeText;

/// The span of values from which an axis is logarithmic.
const LOG_SPAN: f64 = 10.0;

/// About so many ticks fit on an axis.
const TICKS: f64 = 6.0;

/// The place of values on an axis, from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    kind: ScaleKind,
    low: f64,
    high: f64,
    /// The unit of the ticks: a multiple of the unit of the values, and its name.
    unit: (f64, &'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleKind {
    /// `low` and `high` are places of [`PERCENTILES`].
    Percentiles,
    /// `low` and `high` are values.
    Linear,
    /// `low` and `high` are logarithms with the base 2.
    Log2,
    /// `low` and `high` are logarithms with the base 10.
    Log10,
}

impl Scale {
    /// Returns a scale that shows all of these values.
    pub(super) fn of(unit: AxisUnit, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<_> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        let least = positive.fold(f64::MAX, f64::min).min(most);
        let (kind, low, high) = match unit {
            AxisUnit::Percentile => {
                let [.., (maximum, _)] = PERCENTILES;
                (ScaleKind::Percentiles, 0.0, maximum)
            }
            AxisUnit::Bytes if least > 0.0 => {
                let (low, high) = (least.log2().floor(), most.log2().ceil());
                (ScaleKind::Log2, low, high.max(low + 1.0))
            }
            _ if least > 0.0 && most / least > LOG_SPAN => {
                let (low, high) = (nice_below(least), nice_above(most));
                (ScaleKind::Log10, low.log10(), high.log10())
            }
            _ => return Self::from_zero(unit, most),
        };
        Self {
            kind,
            low,
            high,
            unit: tick_unit(unit, least, most),
        }
    }

    pub(super) fn from_zero(unit: AxisUnit, most: f64) -> Self {
        let step = step(most);
        Self {
            kind: ScaleKind::Linear,
            low: 0.0,
            high: ((most / step).ceil() * step).max(step),
            unit: tick_unit(unit, most, most),
        }
    }

    /// Returns the place of a value: 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let at = match self.kind {
            ScaleKind::Percentiles | ScaleKind::Linear => value,
            ScaleKind::Log2 => value.log2(),
            ScaleKind::Log10 => value.log10(),
        };
        let place = (at - self.low) / (self.high - self.low);
        // A value of 0 has no logarithm.
        if place.is_nan() {
            0.0
        } else {
            place.clamp(0.0, 1.0)
        }
    }

    /// Returns the unit of the ticks: "MB/s".
    pub(super) fn unit(&self) -> &'static str {
        self.unit.1
    }

    /// Returns a value in the unit of the ticks, with three digits.
    pub(super) fn figure(&self, value: f64) -> String {
        let value = value / self.unit.0;
        let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0);
        let power = 10_f64.powf(decimals);
        ((value * power).round() / power).to_string()
    }

    /// Returns the ticks: a value, and its text.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values = match self.kind {
            ScaleKind::Percentiles => {
                let name = |percentile: f64| match percentile {
                    100.0 => "max".to_owned(),
                    percentile => format!("p{percentile}"),
                };
                let ticks = PERCENTILES.into_iter();
                return ticks.map(|(place, of)| (place, name(of))).collect();
            }
            ScaleKind::Log2 => {
                let every = ((self.high - self.low) / (TICKS + 3.0)).ceil().max(1.0);
                let exponents = steps(self.low, self.high, every).into_iter();
                return exponents.map(|of| (of.exp2(), size(of))).collect();
            }
            ScaleKind::Linear => steps(self.low, self.high, step(self.high)),
            ScaleKind::Log10 => decades(self.low, self.high),
        };
        let tick = |value: f64| (value, self.figure(value));
        values.into_iter().map(tick).collect()
    }
}

/// Returns the ticks between two powers of 10: 1, 2, 5, 10 on a short axis, powers of 10 on a long one.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let digits: &[f64] = match high - low {
        decades if decades < 4.1 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let every = ((high - low) / TICKS).ceil().max(1.0);
    let exponents = steps(low.floor(), high.ceil(), every).into_iter();
    let values = exponents.flat_map(|of| digits.iter().map(move |digit| digit * 10_f64.powf(of)));
    let (least, most) = (10_f64.powf(low) * 0.999, 10_f64.powf(high) * 1.001);
    let is_shown = |value: &f64| (least..=most).contains(value);
    values.filter(is_shown).collect()
}

/// Returns the values from `low` to `high` in steps.
fn steps(low: f64, high: f64, step: f64) -> Vec<f64> {
    let values = std::iter::successors(Some(low), |value| Some(value + step));
    let limit = high + step / 1000.0;
    // A scale has some ten ticks. The second limit only ends a scale that is not a number.
    values
        .take_while(|value| *value <= limit)
        .take(64)
        .collect()
}

/// Returns a step of 1, 2 or 5 times a power of ten for an axis from 0 to `most`.
fn step(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    nice_above(most / TICKS)
}

fn nice_above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power);
    let mut fits = nice.filter(|nice| *nice >= value * 0.999_999);
    fits.next().unwrap_or(power * 10.0)
}

fn nice_below(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let nice = [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power);
    let mut fits = nice.filter(|nice| *nice <= value * 1.000_001);
    fits.next().unwrap_or(power)
}

/// Returns the unit in which values from `least` to `most` are shown.
fn tick_unit(unit: AxisUnit, least: f64, most: f64) -> (f64, &'static str) {
    let units: &[(f64, &str)] = match unit {
        AxisUnit::Bytes => &[(1.0, "bytes")],
        AxisUnit::Percentile => &[(1.0, "percentile")],
        // Short times are in microseconds, whatever the longest one is.
        AxisUnit::Micros if least >= 1e7 => &[(1e6, "s")],
        AxisUnit::Micros if least >= 1e4 => &[(1e3, "ms")],
        AxisUnit::Micros => &[(1.0, "µs")],
        AxisUnit::BytesPerSecond => &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
        AxisUnit::OperationsPerSecond => &[
            (1e6, "million operations/s"),
            (1e3, "thousand operations/s"),
            (1.0, "operations/s"),
        ],
    };
    let fits = units.iter().find(|(factor, _)| most >= *factor);
    *fits.unwrap_or(&units[units.len() - 1])
}

fn size(exponent: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an operation has at most 1 GiB, and the scale ends at the next power"
    )]
    let exponent = exponent.clamp(0.0, 31.0) as u32;
    SizeText(1 << exponent).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<String> {
        scale.ticks().into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let scale = Scale::of(AxisUnit::Bytes, [2.0, 1024.0].into_iter());
        assert_eq!(texts(&scale)[..3], ["2 B", "4 B", "8 B"]);
        assert!((scale.place(2.0), scale.place(1024.0)) == (0.0, 1.0));
        let long = Scale::of(AxisUnit::Bytes, [4096.0, 16_777_216.0].into_iter());
        assert_eq!(texts(&long)[..2], ["4 KiB", "16 KiB"]);
    }

    #[test]
    fn a_short_range_begins_at_zero_and_a_long_one_is_logarithmic() {
        let short = Scale::of(AxisUnit::Micros, [20.0, 39.0].into_iter());
        assert_eq!(texts(&short), ["0", "10", "20", "30", "40"]);
        let long = Scale::of(AxisUnit::Micros, [3.0, 6000.0].into_iter());
        assert_eq!(
            texts(&long),
            [
                "2", "5", "10", "20", "50", "100", "200", "500", "1000", "2000", "5000", "10000"
            ]
        );
    }

    #[test]
    fn rates_have_a_prefix() {
        let scale = Scale::of(AxisUnit::BytesPerSecond, [1.1e9, 2.5e9].into_iter());
        assert_eq!(scale.unit(), "GB/s");
        assert_eq!(scale.figure(2.345e9), "2.35");
        assert_eq!(texts(&scale)[..3], ["0", "0.5", "1"]);
        let scale = Scale::of(AxisUnit::OperationsPerSecond, [3e4, 4e4].into_iter());
        assert_eq!(scale.unit(), "thousand operations/s");
    }

    #[test]
    fn any_values_have_a_scale() {
        for values in [
            &[][..],
            &[0.0],
            &[0.0, 0.0],
            &[1e-9],
            &[5.0, 5.0],
            &[1e-3, 1e9],
            &[f64::NAN, f64::INFINITY, 3.0],
        ] {
            for unit in [
                AxisUnit::Bytes,
                AxisUnit::Micros,
                AxisUnit::BytesPerSecond,
                AxisUnit::OperationsPerSecond,
                AxisUnit::Percentile,
            ] {
                let scale = Scale::of(unit, values.iter().copied());
                assert!(
                    (2..=20).contains(&scale.ticks().len()),
                    "{unit:?} {values:?} {scale:?}"
                );
                for value in values {
                    assert!((0.0..=1.0).contains(&scale.place(*value)), "{scale:?}");
                }
            }
        }
    }
}
