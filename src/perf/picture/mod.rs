//! Pictures of a report. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`chart`] | what a picture shows |
//! | [`of_report`] | the charts of a report |
//! | [`drawing`] | a picture as SVG |
//! | [`curve_drawing`], [`bar_drawing`] | the two kinds of charts |
//! | [`scale`] | values on an axis, and its ticks |
//! | [`ink`] | lines, texts, colours and markers |
//!
//! The crate `svg` writes the text, and escapes all of it. Scales, ticks and labels are ours: plotters writes each dash
//! of a line as a line of its own, and places no labels at the ends of curves.

mod bar_drawing;
pub(crate) mod chart;
mod curve_drawing;
mod drawing;
mod ink;
mod of_report;
mod scale;
#[cfg(test)]
mod tests;

pub(crate) use self::{drawing::svg, of_report::picture};
