//! rdforward between processes of this machine and between hosts of namespaces, over TCP: listeners, commands, tickets, servers, and what ends a tunnel.
#![cfg(feature = "cli")]

mod commands;
mod conversations;
mod crowds;
mod deaths;
mod ends;
mod listeners;
mod slow_links;
#[path = "../support/mod.rs"]
mod support;
mod tunnel;
mod without_ssh;
mod wrong_use;
