//! The programs as their users run them: real processes on this machine, and on hosts of namespaces with an sshd each.
#![cfg(feature = "cli")]

mod copies;
mod deployment;
mod encryption;
mod examples;
mod forwarded_programs;
mod forwarding;
mod links;
mod measuring;
mod pipelines;
mod rdcat_transfers;
mod rdsend_rdrecv;
mod rdsh;
mod recipes;
mod serving;
#[path = "../support/mod.rs"]
mod support;
mod via_ssh;
mod wrong_commands;
