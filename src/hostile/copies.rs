//! What a hostile client does to `rdcp --serve`: its session, its order, its edges, and messages on all of them.

use std::{
    io::{self, Cursor},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use futures::SinkExt;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::codec::FramedWrite;

use super::{
    HostileDeeds,
    valid::{Choices, valid},
};
use crate::{
    Direction, Key, Stream, StreamConfig, TransportPolicy, WriteHalf, connect,
    copy::{
        order::{CopyOptions, CopyOrder, CopyRole},
        path::{CopiedSources, EntryName},
        question::{self, FromDestination, FromSource},
        record::{self, LaneRecord},
        written::WrittenPart,
    },
    options::StreamOptions,
    ssh::{
        frames::{self, FrameCodec},
        protocol::{self, EdgeId, EdgeOrder, Order, Payload, ToAgent, Work, greeting},
        sealed::{self, SealedSession},
        session::session_config,
    },
};

/// The silence after which this client treats a server as dead. It keeps a session alive without pings for as long.
const SILENCE: Duration = Duration::from_secs(30);

/// The time after which an order counts as refused, if its edges cannot be connected.
const CONNECT_PATIENCE: Duration = Duration::from_millis(400);

/// A server of copies, as a hostile client reaches it.
#[derive(Clone)]
pub(super) struct CopyServer {
    pub(super) address: SocketAddr,
    pub(super) key: Key,
    /// The directory below the root where the client does its work: `""`, or a path with a slash at its end.
    pub(super) place: String,
}

/// A message on any way to the server.
pub(super) enum CopyMessage {
    Session(ToAgent),
    /// A record of a lane, with the length of its contents that it announces.
    Record(LaneRecord, usize),
    FromSource(FromSource),
    FromDestination(FromDestination),
}

/// A session with a server and the edges of its order.
pub(super) struct HostileCopy {
    session: FramedWrite<Box<dyn AsyncWrite + Send + Unpin>, FrameCodec>,
    /// What the server sends in the session, until it is read.
    unread_session: Option<Box<dyn AsyncRead + Send + Unpin>>,
    control: Option<WriteHalf>,
    lanes: Vec<Stream>,
    /// The halves that are not read, and so stay full.
    unread: Vec<Box<dyn Send>>,
    readers: JoinSet<io::Result<u64>>,
}

impl CopyServer {
    /// Begins a session, up to its greeting.
    pub(super) async fn begin(&self) -> io::Result<HostileCopy> {
        let stream = connect(self.address, &self.key, &session_config(SILENCE)).await;
        let stream = stream.map_err(io::Error::other)?;
        let SealedSession { input, mut output } = sealed::of_dialer(stream, &self.key).await?;
        output.write_all(greeting("controller").as_bytes()).await?;
        output.flush().await?;
        Ok(HostileCopy {
            session: FramedWrite::new(output, frames::codec()),
            unread_session: Some(input),
            control: None,
            lanes: Vec::new(),
            unread: Vec::new(),
            readers: JoinSet::new(),
        })
    }

    /// Connects one edge of an order. The server knows its key only when it has handled the order, and never knows it
    /// if it has refused the order: the caller gives up.
    async fn connect_edge(&self, edge: &EdgeOrder) -> io::Result<Stream> {
        let key = Key::parse(&edge.key).map_err(io::Error::other)?;
        let config = StreamConfig {
            direction: match edge.direction {
                Direction::Send => Direction::Receive,
                Direction::Receive => Direction::Send,
                Direction::Both => Direction::Both,
            },
            transport: TransportPolicy::Tcp,
            ..StreamConfig::default()
        };
        loop {
            match connect(self.address, &key, &config).await {
                Ok(stream) => return Ok(stream),
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Returns an order with these edges: the control edge and so many lanes.
    pub(super) fn order(
        &self,
        role: CopyRole,
        lanes: u32,
        options: CopyOptions,
    ) -> io::Result<Order> {
        let lane = match role {
            CopyRole::Source(_) => Direction::Send,
            CopyRole::Destination { .. } => Direction::Receive,
        };
        let edge = |id| -> io::Result<EdgeOrder> {
            let key = Key::generate().map_err(io::Error::other)?;
            Ok(EdgeOrder {
                id: EdgeId(id),
                direction: if id == 0 { Direction::Both } else { lane },
                peer: "the other end".to_owned(),
                key: key.text().to_string(),
                listens: true,
            })
        };
        let copy = CopyOrder {
            role: self.placed(role),
            control: EdgeId(0),
            lanes: (1..=lanes).map(EdgeId).collect(),
            options,
        };
        Ok(Order {
            name: "a hostile client".to_owned(),
            work: Work::Copy(Payload::encode(&copy).map_err(io::Error::other)?),
            edges: (0..=lanes).map(edge).collect::<io::Result<_>>()?,
            stream: StreamOptions::default(),
            ports: None,
        })
    }

    /// Returns any order, and whether it makes the server the source.
    fn random_order(&self, choices: &mut Choices<'_>) -> io::Result<(Order, bool)> {
        let CopyOrder {
            mut role, options, ..
        } = valid(choices);
        if choices.below(2) == 0 {
            // The client's own place is a directory that exists.
            role = destination(b"");
        }
        let is_source = matches!(role, CopyRole::Source(_));
        let lanes = choices.one_of(&[1, 1, 1, 2, 2, 0, 3]);
        let mut order = self.order(role, lanes, options)?;
        if choices.once_in(4) {
            order.stream = valid(choices);
        }
        if choices.once_in(16) {
            order = valid(choices);
        }
        Ok((order, is_source))
    }

    /// Returns the bytes of a session, from its greeting to the last of some messages.
    #[cfg(any(test, fuzzing))]
    pub(super) fn session_bytes(&self, choices: &mut Choices<'_>) -> io::Result<Vec<u8>> {
        let (order, _) = self.random_order(choices)?;
        let mut messages = vec![ToAgent::Order(Box::new(order))];
        for _ in 0..choices.below(16) {
            messages.push(match CopyMessage::random(true, choices) {
                CopyMessage::Session(message) => message,
                _ => valid(choices),
            });
        }
        let mut bytes = bytes::BytesMut::from(greeting("controller").as_bytes());
        for message in messages {
            let message = protocol::encode(&message).map_err(io::Error::other)?;
            let message = Bytes::from_owner(message);
            tokio_util::codec::Encoder::encode(&mut frames::codec(), message, &mut bytes)?;
        }
        Ok(bytes.to_vec())
    }

    /// Returns a role whose paths are below the client's place.
    fn placed(&self, role: CopyRole) -> CopyRole {
        let placed = |path: Vec<u8>| [self.place.as_bytes(), &path].concat();
        match role {
            CopyRole::Source(paths) => CopyRole::Source(paths.into_iter().map(placed).collect()),
            CopyRole::Destination {
                path,
                sources,
                part,
            } => CopyRole::Destination {
                path: placed(path),
                sources,
                part,
            },
        }
    }

    /// Plays a client that sends valid messages in any order, up to an end that its decisions choose.
    pub(super) async fn play(
        &self,
        choices: &mut Choices<'_>,
        deeds: &HostileDeeds,
    ) -> io::Result<()> {
        let mut copy = self.begin().await?;
        deeds.sessions.add();
        if choices.once_in(8) {
            return copy.stay().await;
        }
        if !choices.once_in(3) {
            copy.read_session();
        }
        let (order, is_source) = self.random_order(choices)?;
        let edges = order.edges.clone();
        let order = ToAgent::Order(Box::new(order));
        copy.send(CopyMessage::Session(order)).await?;
        let connected = if choices.once_in(8) {
            choices.below(edges.len() + 1)
        } else {
            edges.len()
        };
        let connecting = copy.connect(self, &edges[..connected], choices);
        timeout(CONNECT_PATIENCE, connecting).await??;
        copy.go().await?;
        deeds.orders.add();
        for _ in 0..choices.one_of(&[0, 5, 50, 500, 5000]) {
            let message = CopyMessage::random(is_source, choices);
            copy.send(message).await?;
            deeds.messages.add();
        }
        copy.end(choices).await
    }
}

impl CopyMessage {
    /// Returns any message of a client to a server that is the source or the destination.
    fn random(server_is_source: bool, choices: &mut Choices<'_>) -> Self {
        match choices.below(16) {
            0 => Self::Session(match choices.below(8) {
                0 => valid(choices),
                1 => {
                    let payload = Payload::encode(&valid::<WrittenPart>(choices));
                    payload.map_or(ToAgent::Ping, ToAgent::Application)
                }
                _ => ToAgent::Ping,
            }),
            _ if server_is_source => Self::FromDestination(valid(choices)),
            1..=4 => Self::FromSource(valid(choices)),
            5 => Self::place_itself(),
            _ => {
                let record = valid(choices);
                let contents = match record {
                    LaneRecord::File { .. } | LaneRecord::Part { .. } => {
                        choices.one_of(&[0, 1, 5000, 70_000])
                    }
                    _ => 0,
                };
                Self::Record(record, contents)
            }
        }
    }

    /// Returns the record that makes the place of the copy the folder of what follows.
    pub(super) fn place_itself() -> Self {
        let folder = LaneRecord::Folder {
            path: valid_path(b""),
            metadata: None,
            above: Vec::new(),
        };
        Self::Record(folder, 0)
    }
}

impl HostileCopy {
    /// Reads and drops everything that the server sends in the session.
    pub(super) fn read_session(&mut self) {
        if let Some(mut input) = self.unread_session.take() {
            self.readers
                .spawn(async move { tokio::io::copy(&mut input, &mut tokio::io::sink()).await });
        }
    }

    /// Connects these edges of an order. Some are read, some are not.
    pub(super) async fn connect(
        &mut self,
        server: &CopyServer,
        edges: &[EdgeOrder],
        choices: &mut Choices<'_>,
    ) -> io::Result<()> {
        for edge in edges {
            let stream = server.connect_edge(edge).await?;
            if edge.direction == Direction::Receive {
                self.lanes.push(stream);
                continue;
            }
            let (mut read, write) = stream.into_split();
            if choices.once_in(3) {
                self.unread.push(Box::new(read));
            } else {
                self.readers
                    .spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
            }
            if edge.id == EdgeId(0) {
                self.control = Some(write);
            } else {
                self.unread.push(Box::new(write));
            }
        }
        Ok(())
    }

    /// Starts the work. A source names no operands, so that what follows is written.
    pub(super) async fn go(&mut self) -> io::Result<()> {
        self.send(CopyMessage::Session(ToAgent::Go)).await?;
        if self.lanes.is_empty() {
            return Ok(());
        }
        let (operands, last) = (Vec::new(), true);
        self.send(CopyMessage::FromSource(FromSource::Operands {
            operands,
            last,
        }))
        .await
    }

    /// Sends a message on its way, or nothing if the way is not connected.
    pub(super) async fn send(&mut self, message: CopyMessage) -> io::Result<()> {
        self.put(message).await?;
        self.session.flush().await
    }

    /// Sends a message as [`send`](Self::send) does. A message of the session may wait for those behind it.
    pub(super) async fn put(&mut self, message: CopyMessage) -> io::Result<()> {
        match message {
            CopyMessage::Session(message) => {
                let bytes = protocol::encode(&message).map_err(io::Error::other)?;
                self.session.feed(Bytes::from_owner(bytes)).await
            }
            CopyMessage::FromSource(message) => self.ask(&message).await,
            CopyMessage::FromDestination(message) => self.ask(&message).await,
            CopyMessage::Record(record, contents) => {
                let Some(lane) = self.lanes.first_mut() else {
                    return Ok(());
                };
                let mut bytes = Vec::new();
                let Ok(length) = record::encode(&record, &mut bytes) else {
                    return Ok(());
                };
                let announced = u32::try_from(contents).map_err(io::Error::other)?;
                record::set_content_length(&mut bytes, length, announced);
                bytes.resize(bytes.len() + contents, 7);
                lane.write_all(&bytes).await?;
                self.lanes.rotate_left(1);
                Ok(())
            }
        }
    }

    async fn ask(&mut self, message: &impl serde::Serialize) -> io::Result<()> {
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        let bytes = question::encode(message).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let length = length.to_le_bytes();
        let mut bytes = bytes::Buf::chain(Cursor::new(length), bytes);
        control.write_all_buf(&mut bytes).await
    }

    /// Ends as the decisions say: in order, killed by its own message, gone at once, or not at all.
    async fn end(mut self, choices: &mut Choices<'_>) -> io::Result<()> {
        match choices.below(5) {
            0 => return Ok(()),
            1 => {
                let reason = "a hostile client has enough".to_owned();
                let kill = ToAgent::Kill { reason };
                self.send(CopyMessage::Session(kill)).await?;
            }
            2 => {
                // Nothing runs meanwhile: no keepalive, and no socket is read.
                std::thread::sleep(Duration::from_millis(200));
            }
            _ => {
                for _ in 0..self.lanes.len() {
                    self.send(CopyMessage::Record(LaneRecord::End, 0)).await?;
                }
                for lane in &mut self.lanes {
                    lane.shutdown().await?;
                }
                self.send(CopyMessage::FromSource(FromSource::Finished))
                    .await?;
            }
        }
        self.stay().await
    }

    /// Stays connected without a word, until it is dropped.
    pub(super) async fn stay(self) -> io::Result<()> {
        std::future::pending::<()>().await;
        drop(self);
        Ok(())
    }
}

/// Returns the role of a server that writes what many sources bring to the client's place.
pub(super) fn destination(path: &[u8]) -> CopyRole {
    CopyRole::Destination {
        path: path.to_vec(),
        sources: CopiedSources::Many,
        part: crate::copy::order::RunPart::default(),
    }
}

pub(super) fn valid_name(name: &[u8]) -> EntryName {
    let name = EntryName::try_from(name.to_vec());
    name.unwrap_or_else(|error| unreachable!("{error}"))
}

pub(super) fn valid_path(path: &[u8]) -> crate::copy::path::RelativePath {
    let path = crate::copy::path::RelativePath::try_from(path.to_vec());
    path.unwrap_or_else(|error| unreachable!("{error}"))
}
