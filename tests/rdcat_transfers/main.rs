//! rdcat with tickets: both ways at once, one way, and every way in which it must not come about.

#![cfg(feature = "cli")]

mod common;
mod hosts;
mod pair;
mod rdcat;
mod tickets;
