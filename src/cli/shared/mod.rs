//! Code that the programs share: runs, messages, exit codes, progress, reports and the hiding of secrets.
//!
//! | file | what it has |
//! |---|---|
//! | `run` | a run of rdsend, rdrecv, or rdcat with a ticket: runtimes, signals, the report at the end |
//! | `ticket` | the two ends that find each other by a ticket |
//! | `pipeline` | runs a pipeline, for rdpipe, for the files of rdcat, and for the standard streams of rdcp |
//! | `supervision` | runs work on other hosts: starts the supervisor, and prints its notices |
//! | `signals` | the signals after which a program ends its run and reports it |
//! | `exit` | the exit codes of the programs |
//! | `message` | messages on stderr: one sentence after the names of program and host |
//! | `events` | shows warnings that the library traces |
//! | `stderr` | writes messages to stderr on a thread of its own |
//! | `stdout` | what a program writes to stdout itself |
//! | `progress` | the progress bar of a run |
//! | `report` | the messages at the start of a run, and the report at its end |
//! | `table` | tables for people |
//! | `secret` | hides secrets in the arguments and the environment from `ps` |

mod events;
pub(crate) mod exit;
pub(crate) mod message;
pub(crate) mod pipeline;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod signals;
pub(crate) mod stderr;
pub(crate) mod stdout;
pub(crate) mod supervision;
pub(crate) mod table;
pub(crate) mod ticket;
