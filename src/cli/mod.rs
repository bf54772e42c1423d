//! The command lines: a folder for each program, and the code that the programs share. Not part of the API.

pub(crate) mod args;
#[cfg(test)]
mod quoted;
pub mod rdcat;
pub mod rdpipe;
pub mod rdrecv;
pub mod rdsend;
mod shared;
