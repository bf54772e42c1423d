//! What is wrong.
