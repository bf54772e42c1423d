//! Runs on several machines: the controller, the agents that work for it, and ssh between the two.
//!
//! The modules, each of which uses only those above it:
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`protocol`] | the envelope between controller and agent: orders, edges, the greeting | none |
//! | [`frames`] | the frames of a session, and its greeting in the output of a login shell | none |
//! | [`stage`] | the messages of an application: the stages of rdpipe, and the files of rdcat | none |
//! | [`quote`], [`plan`] | words for shells, segments of command lines | none |
//! | [`operands`] | operands of command lines | none |
//! | [`deploy`] | the script that starts an agent, and this program for hosts without it | files |
//! | [`launch`] | the process that leads to an agent | tokio, processes |
//! | [`explain`] | words for failures | none |
//! | [`edge`] | one end of an edge: listens, dials, describes its link | tokio |
//! | [`sealed`] | the encryption of a session without ssh | tokio |
//! | [`agent`] | carries out one order on one host | tokio, processes |
//! | [`session`] | the controller's end of one agent | tokio, processes |
//! | [`local_edge`] | the controller's own edges: its standard input and output | tokio |
//! | [`outcome`] | how a pipeline ended: statuses, the first cause, the exit status | none |
//! | [`supervisor`] | decides each next step, and drives sessions and local edges | a state machine without, a driver with |
//!
//! Two modules on one level do not use each other. The agent and the controller share only [`protocol`],
//! [`frames`], [`stage`], [`explain`] and [`edge`].

pub(crate) mod agent;
pub(crate) mod deploy;
pub(crate) mod edge;
pub(crate) mod explain;
pub(crate) mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod launch;
pub(crate) mod local_edge;
pub(crate) mod operands;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod quote;
pub(crate) mod sealed;
pub(crate) mod session;
pub(crate) mod stage;
pub(crate) mod supervisor;
