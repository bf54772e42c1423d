//! The messages between rdperf and its agents. Pure, no I/O.
//!
//! rdperf gives a *task* to two agents: one listens, the other dials, both measure, and each reports its result. The agents
//! report facts about their hosts before the first task.

mod host;
mod result;
mod task;

pub(crate) use self::{
    host::{AddressFacts, DeviceFacts, HostFacts, MemlockFacts, PortFacts},
    result::{
        BandwidthResult, LatencyResult, NetworkCounters, PathResult, PortPairProof, ProbedSize,
        TaskFault, TaskResult, UsedTransport, VerbsLimits,
    },
    task::{
        BandwidthTask, FromPerf, LatencyTask, Layer, MAX_MESSAGE_BYTES, MAX_OPERATION_BYTES,
        MAX_TASK_STREAMS, PerfOrder, StorageTask, TaskEnd, TaskKind, TaskOrder, ToPerf, Traffic,
        Verb, VerbsPort, VerbsTask, WaitMode,
    },
};
