//! Pipelines of rdpipe, on this machine and over hosts that are network namespaces with an sshd each.

mod failures;
mod hosts;
mod local;
mod loops;
mod orphans;
mod secrets;
mod slurm;
mod surroundings;
mod unread_stderr;

/// The paths of the programs.
const RDCAT: &str = env!("CARGO_BIN_EXE_rdcat");
const RDCP: &str = env!("CARGO_BIN_EXE_rdcp");
const RDFORWARD: &str = env!("CARGO_BIN_EXE_rdforward");
const RDPERF: &str = env!("CARGO_BIN_EXE_rdperf");
const RDPIPE: &str = env!("CARGO_BIN_EXE_rdpipe");
const RDRECV: &str = env!("CARGO_BIN_EXE_rdrecv");
const RDSEND: &str = env!("CARGO_BIN_EXE_rdsend");
