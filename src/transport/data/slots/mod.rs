//! Slots in the hands of users.
//!
//! | file | what it has, in the order in which a byte meets it |
//! |---|---|
//! | [`fill_slots`] | the trait through which the loop under every program fills slots in place |
//! | [`lent_slot`] | a slot of the sending pool that the program fills itself |
//! | [`readable`] | a verified chunk, or what the reader has left of it |
//! | [`lending`] | received chunks that the program keeps, and their return |

pub(crate) mod fill_slots;
pub(crate) mod lending;
pub(crate) mod lent_slot;
pub(crate) mod readable;
