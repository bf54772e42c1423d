//! A packet that measures a path. Pure, no I/O.

/// What a packet says about itself, in its first bytes. The rest of it is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbePacket {
    /// The number of the task, which only its two ends know.
    pub(super) token: u64,
    /// The number of the round.
    pub(super) round: u32,
    /// The position of the packet's size in the sizes of the round.
    pub(super) index: u8,
}

/// The bytes that have a meaning.
const HEAD_BYTES: usize = 13;

impl ProbePacket {
    /// Returns the payload of `bytes` bytes; of at least as many as the packet needs.
    pub(super) fn encode(self, bytes: usize) -> Vec<u8> {
        let mut payload = self.token.to_le_bytes().to_vec();
        payload.extend(self.round.to_le_bytes());
        payload.push(self.index);
        payload.resize(bytes.max(HEAD_BYTES), 0);
        payload
    }

    /// Reads the beginning of a payload. Returns none if it is too short.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (token, rest) = payload.split_first_chunk()?;
        let (round, rest) = rest.split_first_chunk()?;
        Some(Self {
            token: u64::from_le_bytes(*token),
            round: u32::from_le_bytes(*round),
            index: *rest.first()?,
        })
    }
}
