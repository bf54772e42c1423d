//! rdforward between processes of this machine and between hosts of namespaces, over TCP: listeners, commands, tickets,
//! servers, and what ends a tunnel.

mod commands;
mod conversations;
mod crowds;
mod deaths;
mod ends;
mod listeners;
mod slow_links;
mod tunnel;
mod without_ssh;
mod wrong_use;
