//! Slots that users of the stream hold.
//!
//! | file | what it has, in the order in which a byte meets it |
//! |---|---|
//! | [`fill_slots`] | the trait through which a program fills slots in place |
//! | [`filling_slot`] | a slot that is being filled |
//! | [`lent_slot`] | a slot of the sending pool that the program fills itself |
//! | [`readable`] | a verified chunk, or what the reader has left of it |
//! | [`lending`] | received chunks that the program keeps, and their return |

pub(crate) mod fill_slots;
pub(crate) mod filling_slot;
pub(crate) mod lending;
pub(crate) mod lent_slot;
pub(crate) mod readable;
