//! What the clients of a server may do: only copies, only below one directory, only in the directions that the server
//! and the client's line in the key file allow.

use rustix::io::Errno;

use crate::{
    Key,
    cli::server::rights::{Access, ClientRights, Writes},
    copy::{
        budget::ListBudget,
        destination::{DestinationClaims, ExistingRights, ServedDestination},
        job::{CopyJob, ServedCopy},
        order::{CopyOptions, CopyOrder, CopyRole, ExistingFiles},
        path::BaseDirectory,
        temporary_names::PartOwner,
    },
    ssh::{
        agent::job::{JobContext, OrderedEdges},
        protocol::{Order, Payload, Work},
    },
};

/// The side of a copy that a server is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ServedSide {
    /// The server sends its files.
    #[default]
    Source,
    /// The server writes the files of the client.
    Destination,
}

/// The client that an order is carried out for.
#[derive(Clone, Copy)]
pub(super) struct OrderingClient<'a> {
    /// The name in the key file, which messages to other clients have too.
    pub(super) name: &'a str,
    pub(super) key: &'a Key,
    /// The number of the line in the key file.
    pub(super) line_number: usize,
    /// What the line allows.
    pub(super) rights: &'a ClientRights,
}

/// What the clients of a server may do.
#[derive(Clone)]
pub(super) struct ServedCopies {
    /// The directory that all paths are relative to.
    pub(super) base: BaseDirectory,
    /// The destinations that copies are writing.
    pub(super) claims: DestinationClaims,
    /// What all clients may do.
    pub(super) access: Access,
    pub(super) most_lanes: u16,
    /// True if owners, ACLs and all else that clients send are kept, as far as the server's process may set them.
    pub(super) is_privileged: bool,
    /// The memory for the lists of each copy.
    pub(super) list_bytes: usize,
}

impl ServedCopies {
    /// Checks that a client whose line allows `line` may have its order carried out, and returns the side of the copy that
    /// the server is.
    pub(super) fn admit(&self, line: Access, order: &Order) -> Result<ServedSide, String> {
        let Work::Copy(payload) = &order.work else {
            return Err("this server only copies files".to_owned());
        };
        let copy: CopyOrder = payload
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        let lanes = copy.lanes.len();
        if lanes > usize::from(self.most_lanes) {
            // The hello of the server has said so.
            let most = self.most_lanes;
            return Err(format!(
                "received an order of {lanes} lanes, and this server allows {most}"
            ));
        }
        if order.edges.len() != lanes + 1 || order.edges.iter().any(|edge| !edge.listens) {
            return Err("received an order whose streams do not all lead here".to_owned());
        }
        let side = match copy.role {
            CopyRole::Source(_) => ServedSide::Source,
            CopyRole::Destination { .. } => ServedSide::Destination,
        };
        match side {
            ServedSide::Source => self.admit_reading(line, &copy.options)?,
            ServedSide::Destination => self.admit_writing(line, &copy.options)?,
        }
        Ok(side)
    }

    fn admit_reading(&self, line: Access, options: &CopyOptions) -> Result<(), String> {
        if !self.access.reads {
            return Err(SERVER_WRITES.to_owned());
        }
        if !line.reads {
            return Err(only_writes(line).to_owned());
        }
        let writes = self.access.and(line).writes;
        if options.remove_source_files && writes != Writes::All {
            let who = if self.access.writes == Writes::All {
                LINE_READS
            } else {
                SERVER_READS
            };
            return Err(format!(
                "{who}, so --remove-source-files cannot remove the server's files"
            ));
        }
        Ok(())
    }

    /// A client that may not read is told nothing of what the server has. So the options are refused that would tell it.
    fn admit_writing(&self, line: Access, options: &CopyOptions) -> Result<(), String> {
        if self.access.writes == Writes::Nothing {
            return Err(SERVER_READS.to_owned());
        }
        if line.writes == Writes::Nothing {
            return Err(LINE_READS.to_owned());
        }
        let access = self.access.and(line);
        let telling = telling_option(access, options).filter(|_| !access.reads);
        telling.map_or(Ok(()), |option| {
            let who = if line.reads {
                SERVER_WRITES
            } else {
                only_writes(line)
            };
            Err(format!(
                "{who}, so {option} is refused: it would tell what the server has"
            ))
        })
    }

    /// Makes the job of an order that [`admit`](Self::admit) has checked.
    pub(super) fn prepare(
        &self,
        client: OrderingClient<'_>,
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<CopyJob, String> {
        let rights = client.rights;
        let access = self.access.and(rights.access);
        let served = ServedCopy {
            destination: ServedDestination {
                claims: self.claims.of_copy(client.name),
                owner: PartOwner::client(client.name, client.key),
                is_privileged: self.is_privileged,
                existing: ExistingRights {
                    reads: access.reads,
                    replaces: access.writes == Writes::All,
                },
            },
            budget: ListBudget::of_server(self.list_bytes),
        };
        let base = self.base_of(rights, client.line_number)?;
        CopyJob::prepare_in(&base, Some(served), context, order, edges)
    }

    /// Opens the directory that the paths of a client are relative to. The sentence does not name it: a user may have put
    /// a key in its place.
    fn base_of(&self, rights: &ClientRights, line: usize) -> Result<BaseDirectory, String> {
        let Some(directory) = &rights.directory else {
            return Ok(self.base.clone());
        };
        self.base.below(directory).map_err(|errno| {
            let named = format!("the directory in line {line} of the server's key file");
            match errno {
                Errno::NOENT => format!(
                    "{named} does not exist: make it on the server, below the directory of --root"
                ),
                Errno::LOOP => format!(
                    "{named} is or leads through a symbolic link, which a server does not follow there: name the \
                     directory itself"
                ),
                errno => format!("{named} cannot be opened: {errno}"),
            }
        })
    }
}

const SERVER_READS: &str = "this server is read-only";
const SERVER_WRITES: &str = "this server is write-only";
const LINE_READS: &str = "this client may only read (ro in the server's key file)";

/// Says of a client that it may not read, as its line does.
fn only_writes(line: Access) -> &'static str {
    match line.writes {
        Writes::New => "this client may only add files (append in the server's key file)",
        Writes::Nothing | Writes::All => "this client may only write (wo in the server's key file)",
    }
}

/// Returns an option whose effect or report depends on what the server has; none if there is none. A client that may
/// replace nothing learns from failures which names are taken, so `--no-clobber` tells it nothing more.
fn telling_option(access: Access, options: &CopyOptions) -> Option<&'static str> {
    let keeps_all = access.writes == Writes::New;
    match options.existing {
        _ if options.delete => Some("--delete"),
        _ if options.dry_run => Some("--dry-run"),
        ExistingFiles::ReplaceDifferent => Some("--skip-same"),
        ExistingFiles::ReplaceOlder => Some("--update"),
        ExistingFiles::Keep if !keeps_all => Some("--no-clobber"),
        ExistingFiles::Keep | ExistingFiles::Replace => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Direction,
        copy::{
            order::{DigestKind, RunPart},
            path::CopiedSources,
        },
        options::StreamOptions,
        ssh::protocol::{EdgeId, EdgeOrder},
    };

    fn served(access: Access) -> ServedCopies {
        ServedCopies {
            base: BaseDirectory::Working,
            claims: DestinationClaims::default(),
            access,
            most_lanes: 2,
            is_privileged: false,
            list_bytes: 1 << 20,
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
        let admitted = |server, line, role: fn() -> CopyRole| {
            let order = order(role(), 2, CopyOptions::default());
            served(server).admit(line, &order).is_ok()
        };
        let all = [
            Access::ALL,
            Access::READ_ONLY,
            Access::WRITE_ONLY,
            Access::APPEND,
        ];
        for server in all {
            for line in all {
                let both = server.and(line);
                assert_eq!(admitted(server, line, source), both.reads);
                let writes = both.writes != Writes::Nothing;
                assert_eq!(admitted(server, line, destination), writes);
            }
        }
        let removing = CopyOptions {
            remove_source_files: true,
            ..CopyOptions::default()
        };
        let order = order(source(), 1, removing);
        assert!(served(Access::ALL).admit(Access::ALL, &order).is_ok());
        let refused = |server, line| served(server).admit(line, &order).unwrap_err();
        for (server, line, who) in [
            (Access::READ_ONLY, Access::ALL, SERVER_READS),
            (Access::ALL, Access::READ_ONLY, LINE_READS),
        ] {
            let why = refused(server, line);
            assert!(
                why.starts_with(who) && why.contains("--remove-source-files"),
                "{why}"
            );
        }
    }

    #[test]
    fn a_client_that_may_not_read_has_no_option_that_tells_what_is_there() {
        let plain = CopyOptions::default;
        let existing = |existing| CopyOptions {
            existing,
            ..plain()
        };
        let delete = CopyOptions {
            delete: true,
            ..plain()
        };
        let dry_run = CopyOptions {
            dry_run: true,
            ..plain()
        };
        let cases = [
            (delete, "--delete"),
            (dry_run, "--dry-run"),
            (existing(ExistingFiles::ReplaceDifferent), "--skip-same"),
            (existing(ExistingFiles::ReplaceOlder), "--update"),
            (existing(ExistingFiles::Keep), "--no-clobber"),
        ];
        for (options, option) in cases {
            let order = order(destination(), 1, options);
            let why = |server, line| served(server).admit(line, &order).err();
            assert_eq!(why(Access::ALL, Access::ALL), None);
            let refused = |who: &str| {
                Some(format!(
                    "{who}, so {option} is refused: it would tell what the server has"
                ))
            };
            let line = Access::WRITE_ONLY;
            assert_eq!(why(Access::ALL, line), refused(only_writes(line)));
            assert_eq!(why(Access::WRITE_ONLY, Access::ALL), refused(SERVER_WRITES));
            let append = refused(only_writes(Access::APPEND)).filter(|_| option != "--no-clobber");
            assert_eq!(why(Access::WRITE_ONLY, Access::APPEND), append);
        }
        let resume = CopyOptions {
            resume: true,
            remove_source_files: true,
            digest: Some(DigestKind::Xxh64),
            ..plain()
        };
        let order = order(destination(), 1, resume);
        assert!(served(Access::ALL).admit(Access::APPEND, &order).is_ok());
    }

    #[test]
    fn a_client_has_the_directory_of_its_line() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("run")).unwrap();
        std::os::unix::fs::symlink("run", place.path().join("link")).unwrap();
        let mut served = served(Access::ALL);
        served.base = BaseDirectory::root(place.path()).unwrap();
        let base = |line: &str| {
            let rights = ClientRights::parse(line.as_bytes()).unwrap();
            served.base_of(&rights, 7).map(drop)
        };
        for line in ["", "ro", "/run", "append run", "/"] {
            assert_eq!(base(line), Ok(()), "{line}");
        }
        for (line, why) in [
            ("/secret", "does not exist: make it on the server"),
            ("ro link", "is or leads through a symbolic link"),
            ("/link/secret", "is or leads through a symbolic link"),
        ] {
            let refused = base(line).unwrap_err();
            assert!(refused.contains(why), "{refused}");
            assert!(
                refused.contains("line 7 of the server's key file"),
                "{refused}"
            );
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn no_command_is_run() {
        let mut order = order(source(), 1, CopyOptions::default());
        order.work = Work::Stage(order.work.payload().clone());
        let refused = served(Access::ALL).admit(Access::ALL, &order);
        let refused = refused.unwrap_err();
        assert!(refused.contains("only copies files"), "{refused}");
    }

    #[test]
    fn an_order_has_few_lanes_and_all_its_edges_lead_to_the_server() {
        let options = CopyOptions::default;
        let served = served(Access::ALL);
        let admit = |order: &Order| served.admit(Access::ALL, order);
        let refused = admit(&order(source(), 3, options())).unwrap_err();
        assert!(refused.contains("3 lanes"), "{refused}");
        let mut dialing = order(source(), 1, options());
        dialing.edges[1].listens = false;
        assert!(admit(&dialing).is_err());
        let mut many = order(source(), 1, options());
        many.edges.push(many.edges[0].clone());
        assert!(admit(&many).is_err());
    }
}
