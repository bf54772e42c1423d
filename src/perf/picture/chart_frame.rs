//! Where a chart is drawn.

/// The place of a chart in its picture, in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChartFrame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}
