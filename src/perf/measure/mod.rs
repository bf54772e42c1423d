//! The measurements of a task: each has an end that dials and an end that listens.
