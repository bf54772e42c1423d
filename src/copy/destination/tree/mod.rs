//! The directories of a copy: opened below the place that receives it, made, mirrored, and completed at the end.
//!
//! | file | what it has |
//! |---|---|
//! | `beneath` | opens what is below a directory, and nothing else |
//! | `folders` | opens the folders, makes those that are missing, and gives them their metadata at the end |
//! | `links` | the hard links, which are made when all files have their names |
//! | `mirror` | removes what the source has not (`--delete`) |

pub(super) mod beneath;
pub(super) mod folders;
pub(super) mod links;
pub(super) mod mirror;
