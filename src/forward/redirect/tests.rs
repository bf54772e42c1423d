mod addresses;
mod ends;
mod entrance;
mod fake;
mod filter;
mod sockets;
