//! Pictures of a report. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`chart`] | what a picture shows |
//! | [`of_report`] | the charts of a report |
//! | [`drawing`] | a picture as SVG |
//! | [`curve_drawing`], [`bar_drawing`] | the two kinds of charts |
//! | [`chart_frame`] | the place of a chart |
//! | [`scale`] | values on an axis, and its ticks |
//! | [`labels`] | labels that do not overlap |
//! | [`ink`] | lines, texts, colours and markers |
//!
//! The crate `svg` writes the text, and escapes all of it. Scales, ticks and labels are ours: plotters writes each dash
//! of a line as a line of its own, and places no labels at the ends of curves.

mod bar_drawing;
pub(crate) mod chart;
mod chart_frame;
mod curve_drawing;
mod drawing;
mod ink;
mod labels;
mod of_report;
mod scale;
#[cfg(test)]
mod tests;

pub(crate) use self::{drawing::svg, of_report::picture};
