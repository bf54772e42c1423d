//! The addresses at which hosts reach each other. Pure, no I/O.

use crate::ssh::{
    plan::{Addresses, StageHost},
    protocol::AgentHello,
};

/// What the user has said about addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressBook<'a> {
    /// The values of `--addr`.
    pub(crate) given: &'a [Addresses],
    /// The value of `-H`: the address at which other hosts reach this machine.
    pub(crate) here: Option<&'a str>,
}

impl AddressBook<'_> {
    /// Returns the addresses of `place` for another host, the best first. `hello` has what its agent has reported.
    /// `is_same_machine`: the two share one network stack.
    pub(crate) fn addresses(
        &self,
        place: &StageHost,
        hello: Option<&AgentHello>,
        is_same_machine: bool,
    ) -> Vec<String> {
        if let Some(host) = place.host()
            && let Some(given) = self.given.iter().find(|given| given.host == host)
        {
            return given.addresses.clone();
        }
        let mut addresses = Vec::new();
        if is_same_machine {
            addresses.push("127.0.0.1".to_owned());
        }
        let said = hello.map_or(&[][..], |hello| &hello.addresses);
        let said = said.iter().map(ToString::to_string);
        match place {
            // The address that the user gave with -H comes before those that the machine reports itself.
            StageHost::Here => {
                addresses.extend(self.here.map(str::to_owned).into_iter().chain(said));
            }
            StageHost::Host { host, .. } => addresses.extend(said.chain([host.clone()])),
            // The name led to the server, so it comes first. Its own addresses may be those of another network.
            StageHost::Server { host, .. } => {
                addresses.extend(std::iter::once(host.clone()).chain(said));
            }
        }
        let mut unique = Vec::with_capacity(addresses.len());
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        unique
    }
}
