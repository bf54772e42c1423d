//! What the clients of a server may do: only copies, only below one directory, only in the directions that the server
//! allows.

use crate::{
    copy::{
        destination::{DestinationClaims, ServedDestination},
        job::CopyJob,
        order::{CopyOrder, CopyRole},
        path::BaseDirectory,
    },
    ssh::{
        agent::job::{JobContext, OrderedEdges},
        protocol::{Order, Payload, Work},
    },
};

/// The directions in which clients copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ServedAccess {
    /// Clients read and write.
    #[default]
    Both,
    /// Clients read files, and change none.
    ReadOnly,
    /// Clients write files, and read none.
    WriteOnly,
}

/// The side of a copy that a server is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ServedSide {
    /// The server sends its files.
    #[default]
    Source,
    /// The server writes the files of the client.
    Destination,
}

/// What the clients of a server may do.
#[derive(Clone)]
pub(super) struct ServedCopies {
    /// The directory that all paths are relative to.
    pub(super) base: BaseDirectory,
    /// The destinations that copies are writing.
    pub(super) claims: DestinationClaims,
    pub(super) access: ServedAccess,
    /// The most lanes of a copy.
    pub(super) most_lanes: usize,
    /// True if owners, ACLs and all else that clients send are kept, as far as the server's process may set them.
    pub(super) is_privileged: bool,
}

impl ServedCopies {
    /// Checks that a client may have its order carried out, and returns the side of the copy that the server is.
    ///
    /// # Errors
    ///
    /// A sentence for the client.
    pub(super) fn admit(&self, order: &Order) -> Result<ServedSide, String> {
        let Work::Copy(payload) = &order.work else {
            return Err("this server only copies files".to_owned());
        };
        let copy: CopyOrder = payload
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        let lanes = copy.lanes.len();
        if lanes > self.most_lanes {
            let most = self.most_lanes;
            return Err(format!(
                "this server allows at most {most} lanes for a copy; give -j {most} or less"
            ));
        }
        if order.edges.len() != lanes + 1 || order.edges.iter().any(|edge| !edge.listens) {
            return Err("received an order whose streams do not all lead here".to_owned());
        }
        let side = match copy.role {
            CopyRole::Source(_) => ServedSide::Source,
            CopyRole::Destination { .. } => ServedSide::Destination,
        };
        let why = match self.access {
            ServedAccess::ReadOnly if side == ServedSide::Destination => "this server is read-only",
            ServedAccess::ReadOnly if copy.options.remove_source_files => {
                "this server is read-only, so --remove-source-files cannot remove its files"
            }
            ServedAccess::WriteOnly if side == ServedSide::Source => "this server is write-only",
            _ => return Ok(side),
        };
        Err(why.to_owned())
    }

    /// Makes the job of an order that [`admit`](Self::admit) has checked. `client` is the name of the client in
    /// messages to other clients.
    ///
    /// # Errors
    ///
    /// A sentence for the client.
    pub(super) fn prepare(
        &self,
        client: &str,
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<CopyJob, String> {
        let served = ServedDestination {
            claims: self.claims.of_copy(client),
            is_privileged: self.is_privileged,
        };
        CopyJob::prepare_in(&self.base, Some(served), context, order, edges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Direction,
        copy::{
            order::{CopyOptions, RunPart},
            path::CopiedSources,
        },
        options::StreamOptions,
        ssh::protocol::{EdgeId, EdgeOrder},
    };

    fn served(access: ServedAccess) -> ServedCopies {
        ServedCopies {
            base: BaseDirectory::Working,
            claims: DestinationClaims::default(),
            access,
            most_lanes: 2,
            is_privileged: false,
        }
    }

    fn source() -> CopyRole {
        CopyRole::Source(vec![b"a".to_vec()])
    }

    fn destination() -> CopyRole {
        CopyRole::Destination {
            path: b"a".to_vec(),
            sources: CopiedSources::One,
            part: RunPart::default(),
        }
    }

    fn order(role: CopyRole, lanes: u32, options: CopyOptions) -> Order {
        let edge = |id| EdgeOrder {
            id: EdgeId(id),
            direction: Direction::Both,
            peer: "rdcp".to_owned(),
            key: "key".to_owned(),
            listens: true,
        };
        let copy = CopyOrder {
            role,
            control: EdgeId(0),
            lanes: (1..=lanes).map(EdgeId).collect(),
            options,
        };
        Order {
            name: "the source here".to_owned(),
            work: Work::Copy(Payload::encode(&copy).unwrap()),
            edges: (0..=lanes).map(edge).collect(),
            stream: StreamOptions::default(),
            ports: None,
        }
    }

    #[test]
    fn clients_copy_in_the_allowed_directions() {
        use ServedAccess::{Both, ReadOnly, WriteOnly};
        let admitted = |access, role: fn() -> CopyRole| {
            let order = order(role(), 2, CopyOptions::default());
            served(access).admit(&order).is_ok()
        };
        for (access, reads, writes) in [
            (Both, true, true),
            (ReadOnly, true, false),
            (WriteOnly, false, true),
        ] {
            assert_eq!(admitted(access, source), reads);
            assert_eq!(admitted(access, destination), writes);
        }
        let removing = CopyOptions {
            remove_source_files: true,
            ..CopyOptions::default()
        };
        let order = order(source(), 1, removing);
        assert!(served(Both).admit(&order).is_ok());
        assert!(served(ReadOnly).admit(&order).is_err());
    }

    #[test]
    fn no_command_is_run() {
        let mut order = order(source(), 1, CopyOptions::default());
        order.work = Work::Stage(order.work.payload().clone());
        let refused = served(ServedAccess::Both).admit(&order).unwrap_err();
        assert!(refused.contains("only copies files"), "{refused}");
    }

    #[test]
    fn an_order_has_few_lanes_and_all_its_edges_lead_to_the_server() {
        let options = CopyOptions::default;
        let served = served(ServedAccess::Both);
        let refused = served.admit(&order(source(), 3, options())).unwrap_err();
        assert!(refused.contains("at most 2 lanes"), "{refused}");
        let mut dialing = order(source(), 1, options());
        dialing.edges[1].listens = false;
        assert!(served.admit(&dialing).is_err());
        let mut many = order(source(), 1, options());
        many.edges.push(many.edges[0].clone());
        assert!(served.admit(&many).is_err());
    }
}
