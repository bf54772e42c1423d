//! The pairs of ports that two ends try, in order. The acceptor proposes them.

use serde::{Deserialize, Serialize};

use super::{
    explain::networks_differ,
    offer::{Candidate, Offers},
    rank::{rank, share_network, to_try},
};
use crate::{
    host::host_name,
    transport::control::{message::printable, role::Role},
};

/// The most pairs of ports that are tried: the two ports of a card, each with its peer, and one more. With more pairs, the
/// time for each would be shorter than the recovery from the loss of one packet.
const MAX_PAIRS: usize = 3;

/// The ports and the chunk size of one end, as the peer receives them.
#[derive(Serialize, Deserialize)]
pub(crate) struct PortsOffer {
    ports: Offers,
    chunk_bytes: u32,
}

/// The acceptor's proposal.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "WireProposal", into = "WireProposal")]
pub(crate) struct Proposal {
    /// The pairs of ports, best first: at least one, and at most [`MAX_PAIRS`].
    pub(crate) pairs: Vec<PortPair>,
    /// The reason why possibly none of the pairs works, if the acceptor has found one.
    pub(crate) doubt: Option<String>,
}

/// A [`Proposal`] on the wire.
type WireProposal = (Vec<PortPair>, Option<String>);

/// One pair of ports, by their positions in the two lists, and the parameters of a link between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortPair {
    /// The position of the port in the dialer's list.
    pub(crate) dialer: u8,
    /// The position of the port in the acceptor's list.
    pub(crate) acceptor: u8,
    /// The path MTU, in bytes.
    pub(crate) mtu: u16,
    /// The payload of a chunk, in bytes.
    pub(crate) chunk_bytes: u32,
    /// The first packet sequence number of the dialer.
    pub(crate) dialer_psn: u32,
    /// The first packet sequence number of the acceptor.
    pub(crate) acceptor_psn: u32,
}

impl PortsOffer {
    /// Offers `candidates`, and chunks of at most `chunk_bytes`.
    pub(crate) fn of(candidates: &[Candidate], chunk_bytes: usize) -> Self {
        Self {
            ports: Offers::of(candidates),
            chunk_bytes: u32::try_from(chunk_bytes).unwrap_or(u32::MAX),
        }
    }
}

impl Proposal {
    /// Proposes pairs of the acceptor's `candidates` and the dialer's ports, with fresh sequence numbers for each pair.
    ///
    /// # Errors
    ///
    /// The reason why no pair can work.
    pub(crate) fn new(
        candidates: &[Candidate],
        chunk_bytes: usize,
        dialer: &PortsOffer,
        psns: impl Fn() -> [u32; 2],
    ) -> Result<Self, String> {
        let theirs = dialer.ports.as_slice();
        let ours = PortsOffer::of(candidates, chunk_bytes);
        let pairs = rank(Role::Acceptor, candidates, theirs);
        let pairs = to_try(&pairs, ours.ports.as_slice(), theirs, MAX_PAIRS);
        if pairs.is_empty() {
            return Err(networks_differ(candidates, theirs));
        }
        let together = |&(i, j): &(usize, usize)| share_network(&candidates[i].offer, &theirs[j]);
        let doubt = (!pairs.iter().any(together)).then(|| {
            let text = networks_differ(candidates, theirs);
            format!("{}: {text}", host_name())
        });
        let chunk_bytes = dialer.chunk_bytes.min(ours.chunk_bytes);
        let pair = |(i, j): (usize, usize)| {
            let [dialer_psn, acceptor_psn] = psns();
            PortPair {
                dialer: small(j),
                acceptor: small(i),
                mtu: candidates[i].path_mtu(&theirs[j]),
                chunk_bytes,
                dialer_psn,
                acceptor_psn,
            }
        };
        let pairs = pairs.into_iter().map(pair).collect();
        Ok(Self { pairs, doubt })
    }
}

impl From<Proposal> for WireProposal {
    fn from(proposal: Proposal) -> Self {
        (proposal.pairs, proposal.doubt)
    }
}

impl TryFrom<WireProposal> for Proposal {
    type Error = &'static str;

    fn try_from((pairs, doubt): WireProposal) -> Result<Self, Self::Error> {
        if pairs.is_empty() || pairs.len() > MAX_PAIRS {
            return Err("no pair of ports, or too many");
        }
        let doubt = doubt.map(|text| printable(&text));
        Ok(Self { pairs, doubt })
    }
}

/// Converts a position in a list of at most [`MAX_OFFERS`](super::offer::MAX_OFFERS).
fn small(place: usize) -> u8 {
    u8::try_from(place).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::{
        ports::fixtures::{infiniband, roce},
        steps::{decode, encode},
    };

    fn proposal(ours: &[Candidate], theirs: &[Candidate]) -> Result<Proposal, String> {
        Proposal::new(ours, 1 << 20, &PortsOffer::of(theirs, 1 << 16), || [1, 2])
    }

    fn with_port(mut candidate: Candidate, port: u8) -> Candidate {
        candidate.offer.port = port;
        candidate
    }

    #[test]
    fn a_proposal_survives_the_wire() {
        let ours = [roce("10.1.0.1"), with_port(roce("10.2.0.1"), 1)];
        let theirs = [with_port(roce("10.2.0.2"), 1), roce("10.1.0.2")];
        let made = proposal(&ours, &theirs).unwrap();
        let read: Proposal = decode(&encode(&made)).unwrap();
        assert_eq!((&read.pairs, &read.doubt), (&made.pairs, &None));
        let places = read.pairs.iter().map(|pair| (pair.acceptor, pair.dialer));
        assert_eq!(places.collect::<Vec<_>>()[..2], [(1, 0), (0, 1)]);
        assert_eq!(
            (read.pairs[0].mtu, read.pairs[0].chunk_bytes),
            (4096, 1 << 16)
        );
    }

    #[test]
    fn none_and_too_many_are_no_proposal() {
        let pairs = proposal(&[roce("10.1.0.1")], &[roce("10.1.0.2")])
            .unwrap()
            .pairs;
        for count in [0, MAX_PAIRS + 1] {
            let choice: WireProposal = (vec![pairs[0].clone(); count], None);
            assert!(decode::<Proposal>(&encode(&choice)).is_err());
        }
    }

    #[test]
    fn networks_that_differ_are_doubted_where_there_may_be_a_route_and_refused_where_there_is_none()
    {
        let routed = proposal(&[roce("10.1.0.1")], &[roce("10.2.0.2")]).unwrap();
        let doubt = routed.doubt.unwrap();
        assert!(
            doubt.contains("(10.1.0.0/24 here, 10.2.0.0/24 there)"),
            "{doubt}"
        );
        let none = proposal(&[roce("10.1.0.1")], &[infiniband(1)])
            .err()
            .unwrap();
        assert!(
            none.contains("10.1.0.0/24 here, InfiniBand subnet"),
            "{none}"
        );
    }
}
