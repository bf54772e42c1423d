//! rdsend and rdrecv as processes: the bytes, the failures and the messages.

mod damaged_connections;
mod deaths;
mod files;
mod messages;
mod networks;
mod rails;
mod random_faults;
mod secrets;
mod usage;
