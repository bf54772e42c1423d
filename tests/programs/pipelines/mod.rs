//! Pipelines of rdpipe, on this machine and over hosts that are network namespaces with an sshd each.

mod closed_streams;
mod errors;
mod failures;
mod few_threads;
mod held_back;
mod hosts;
mod inherited;
mod local;
mod orphans;
mod poor_surroundings;
mod secrets;
mod slurm;
mod start;
mod unread_stderr;
