//! Fixed plans against a server of copies: each sends one kind of message without an end.

use std::{io, time::Duration};

use serde_bytes::ByteBuf;
use tokio::time::timeout;

use super::{
    copies::{CopyMessage, CopyServer, HostileCopy, destination, valid_name, valid_path},
    valid::Choices,
};
use crate::{
    copy::{
        metadata::{Attribute, EntryKind, Metadata, Timestamp},
        order::{CopyOptions, CopyRole, FilterRule},
        question::{AskedEntry, AskedMetadata, FromDestination, FromSource},
        record::{LaneRecord, LargeFile},
        written::WrittenPart,
    },
    ssh::protocol::{Payload, ToAgent},
};

/// A fixed plan of a hostile client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// Pings in a session that is not read.
    Pings,
    /// Pings in a session that is not read, while the client waits for its turn: another session of its own has the
    /// place.
    PingsInTurn,
    /// Messages of the application, which no copy expects.
    Applications,
    /// Tiny files that cannot be written, in a session that is not read.
    FailingFiles,
    /// Names of a folder for `--delete`, and never the last ones.
    Names,
    /// Names of one folder after the other for `--delete`.
    FolderNames,
    /// One order with as many patterns as fit.
    Patterns,
    /// Entries that were not written, toward a source.
    NotWritten,
    /// Large files that are announced, and have no part.
    LargeFiles,
    /// Folders with attributes, which are kept until the end of the copy.
    Folders,
    /// Hard links, which are made at the end of the copy.
    HardLinks,
    /// Questions with attributes, whose answers are not read.
    Questions,
}

impl Attack {
    /// Every plan.
    pub const ALL: [Self; 12] = [
        Self::Pings,
        Self::PingsInTurn,
        Self::Applications,
        Self::FailingFiles,
        Self::Names,
        Self::FolderNames,
        Self::Patterns,
        Self::NotWritten,
        Self::LargeFiles,
        Self::Folders,
        Self::HardLinks,
        Self::Questions,
    ];

    /// Attacks a server with at most so many messages. Returns the number of those that the server took before it
    /// ended the session, or read no more for the time of `patience`; and the client, which is still there.
    pub(super) async fn run(
        self,
        server: &CopyServer,
        most: u64,
        patience: Duration,
    ) -> io::Result<(u64, Vec<HostileCopy>)> {
        let mut others = Vec::new();
        if self == Self::PingsInTurn {
            let mut first = server.begin().await?;
            first.read_session();
            let order = server.order(destination(b""), 1, CopyOptions::default())?;
            first.send(order_of(order)).await?;
            others.push(first);
        }
        let mut copy = server.begin().await?;
        let order = server.order(self.role(), 1, self.options())?;
        let edges = order.edges.clone();
        copy.send(order_of(order)).await?;
        if !matches!(self, Self::Pings | Self::PingsInTurn) {
            // These decisions read every edge.
            let mut choices = Choices::of_script(&[0; 8]);
            match timeout(patience, copy.connect(server, &edges, &mut choices)).await {
                Ok(connected) => connected?,
                Err(_) => return Ok((0, others)),
            }
            copy.go().await?;
        }
        let mut sent = 0;
        while sent < most {
            match timeout(patience, copy.put(self.message(sent))).await {
                Ok(Ok(())) => sent += 1,
                Ok(Err(_)) | Err(_) => break,
            }
        }
        others.push(copy);
        Ok((sent, others))
    }

    fn role(self) -> CopyRole {
        match self {
            Self::NotWritten => CopyRole::Source(vec![b"tree".to_vec()]),
            _ => destination(b""),
        }
    }

    fn options(self) -> CopyOptions {
        let pattern = |number: u32| FilterRule {
            include: false,
            pattern: format!("*{number}"),
        };
        CopyOptions {
            recursive: true,
            archive: true,
            parents: true,
            delete: matches!(self, Self::Names | Self::FolderNames),
            resume: self == Self::Questions,
            remove_source_files: self == Self::NotWritten,
            filters: match self {
                // 54 KB of them.
                Self::Patterns => (10_000..17_500).map(pattern).collect(),
                _ => Vec::new(),
            },
            ..CopyOptions::default()
        }
    }

    fn message(self, number: u64) -> CopyMessage {
        // Padding writes character by character, which is slow without optimisation.
        let long = |number: u64| format!("{}{number:020}", "0".repeat(180));
        let name = |number: u64| valid_name(long(number).as_bytes());
        let path = |number: u64| valid_path(long(number).as_bytes());
        let folder = |path, attributes| {
            CopyMessage::Record(
                LaneRecord::Folder {
                    path,
                    metadata: Some(directory(attributes)),
                    above: Vec::new(),
                },
                0,
            )
        };
        match self {
            Self::Pings | Self::PingsInTurn | Self::Patterns => CopyMessage::Session(ToAgent::Ping),
            Self::Applications => {
                // Other entries in each message: what is kept of them all would grow.
                let part = WrittenPart::of((0..2000).map(|block| (number, block << 4, 1)));
                let payload = Payload::encode(&part);
                CopyMessage::Session(payload.map_or(ToAgent::Ping, ToAgent::Application))
            }
            // A directory has the name of the files, so that none of them can be written.
            Self::FailingFiles if number == 0 => folder(valid_path(b"taken"), Vec::new()),
            Self::FailingFiles if number == 1 => CopyMessage::place_itself(),
            Self::FailingFiles => CopyMessage::Record(
                LaneRecord::File {
                    name: valid_name(b"taken"),
                    metadata: Metadata::default(),
                },
                0,
            ),
            Self::Names | Self::FolderNames => {
                let folder_number = if self == Self::Names { 0 } else { number };
                CopyMessage::FromSource(FromSource::Names {
                    folder: path(folder_number),
                    names: (0..512).map(|at| name(number * 512 + at)).collect(),
                    last: self == Self::FolderNames,
                })
            }
            Self::NotWritten => {
                CopyMessage::FromDestination(FromDestination::NotWritten(path(number)))
            }
            Self::LargeFiles => CopyMessage::Record(
                LaneRecord::LargeFile(LargeFile {
                    id: number,
                    path: path(number),
                    size: 1 << 40,
                    content_bytes: 0,
                    changed: Timestamp::default(),
                    metadata: Metadata {
                        attributes: attributes(),
                        ..Metadata::default()
                    },
                    resumed: false,
                }),
                0,
            ),
            Self::Folders => folder(path(number), attributes()),
            Self::HardLinks if number == 0 => CopyMessage::place_itself(),
            Self::HardLinks => CopyMessage::Record(
                LaneRecord::HardLink {
                    name: name(number),
                    target: path(0),
                },
                0,
            ),
            Self::Questions => CopyMessage::FromSource(FromSource::Ask {
                folder: path(0),
                entries: (0..8).map(|at| asked(name(number * 8 + at))).collect(),
            }),
        }
    }
}

fn order_of(order: crate::ssh::protocol::Order) -> CopyMessage {
    CopyMessage::Session(ToAgent::Order(Box::new(order)))
}

fn directory(attributes: Vec<Attribute>) -> Metadata {
    Metadata {
        mode: 0o755,
        attributes,
        ..Metadata::default()
    }
}

/// Returns 60 KiB of attributes that no file system can refuse before it is asked.
fn attributes() -> Vec<Attribute> {
    vec![(ByteBuf::from(b"user.hostile"), vec![7; 60 << 10].into())]
}

fn asked(name: crate::copy::path::EntryName) -> AskedEntry {
    AskedEntry {
        name,
        kind: EntryKind::File,
        size: 1 << 30,
        modified: Timestamp::default(),
        changed: Timestamp::default(),
        metadata: Some(AskedMetadata {
            mode: 0o644,
            uid: 0,
            gid: 0,
            attributes: Some(attributes()),
        }),
        target: None,
    }
}
