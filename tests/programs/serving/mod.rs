//! `rdcp --serve`: copies of clients without ssh, who may do what, crowds of clients, and how both sides end.

mod conflicts;
mod copies;
mod crowds;
mod ends;
mod served;
mod strangers;
