//! Stands in for the measurements with verbs in a build without RDMA.

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
