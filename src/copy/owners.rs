//! The owners of the source's files, by their names at the destination.

use std::collections::HashMap;

use uzers::{get_group_by_name, get_user_by_name};

/// The most owners whose names one stream may send: far more than a host has, and little memory.
const MAX_OWNERS: usize = 1 << 16;

/// The numbers that users and groups of the source have at this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalOwners {
    users: HashMap<u32, u32>,
    groups: HashMap<u32, u32>,
}

impl LocalOwners {
    /// Notes the names of a user and of a group of the source. Returns false if there are too many.
    pub(crate) fn add_names(
        &mut self,
        user: Option<(u32, String)>,
        group: Option<(u32, String)>,
    ) -> bool {
        if let Some((number, name)) = user {
            if let Some(user) = get_user_by_name(&name) {
                self.users.insert(number, user.uid());
            }
        }
        if let Some((number, name)) = group {
            if let Some(group) = get_group_by_name(&name) {
                self.groups.insert(number, group.gid());
            }
        }
        self.users.len() <= MAX_OWNERS && self.groups.len() <= MAX_OWNERS
    }

    /// Returns the number that a user of the source has here: the same if its name is not known.
    pub(crate) fn user(&self, number: u32) -> u32 {
        self.users.get(&number).copied().unwrap_or(number)
    }

    /// Returns the number that a group of the source has here: the same if its name is not known.
    pub(crate) fn group(&self, number: u32) -> u32 {
        self.groups.get(&number).copied().unwrap_or(number)
    }
}
