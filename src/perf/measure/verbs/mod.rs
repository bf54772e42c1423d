//! Measurements with verbs: two queue pairs, and no stream. They show what the network and the devices can do.
//!
//! Both ends have a control connection. Over it they exchange the addresses of their queue pairs, and at the end the
//! number of operations. In between it is idle, so that it does not disturb what is measured.

#[cfg(feature = "rdma")]
mod endpoint;
#[cfg(feature = "rdma")]
mod proof;
#[cfg(feature = "rdma")]
mod run;
#[cfg(feature = "rdma")]
mod task;
#[cfg(all(test, feature = "rdma"))]
mod tests;

#[cfg(not(feature = "rdma"))]
pub(crate) use absent::{measure_verbs, prove_ports};
#[cfg(feature = "rdma")]
pub(crate) use {proof::prove_ports, task::measure_verbs};

/// Stands in for the measurements in a build without RDMA.
#[cfg(not(feature = "rdma"))]
mod absent {
    use std::time::Duration;

    use tokio::io::{AsyncRead, AsyncWrite};

    use crate::{
        RdmaConfig,
        perf::messages::{TaskEnd, TaskResult, VerbsTask},
    };

    /// Returns the reason why this program cannot measure with verbs.
    #[allow(clippy::unused_async, reason = "the one that does something waits")]
    pub(crate) async fn measure_verbs(
        _end: TaskEnd,
        _task: &VerbsTask,
        _silence: Duration,
        _control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<TaskResult, String> {
        Err("this rdpipe was built without RDMA".to_owned())
    }

    /// Returns the reason why this program cannot send messages over RDMA ports.
    #[allow(clippy::unused_async, reason = "the one that does something waits")]
    pub(crate) async fn prove_ports(
        _end: TaskEnd,
        _config: &RdmaConfig,
        _control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<TaskResult, String> {
        Err("this rdpipe was built without RDMA".to_owned())
    }
}
