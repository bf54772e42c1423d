//! What protects the chunks of a stream: a cipher, or a digest where both ends do without. Pure, no I/O.
//!
//! # Keys
//!
//! The keys come from what travelled under the session keys of Noise: the token of `Welcome` and random bytes of the
//! dialer in `Hello`. So they have the forward secrecy of the exchange: who learns the shared key later decrypts no
//! recording.
//!
//! ```text
//! secret = BLAKE2s(token, the dialer's bytes)
//! K      = HMAC-BLAKE2s(secret, label, cipher u8, direction u8, connection u32, epoch u64)
//! ```
//!
//! | label | key | epoch |
//! |---|---|---|
//! | `rdpipe bulk 1` | of the chunks of a direction | a new one every [`EPOCH_BYTES`]: the offset decides, without a message |
//! | `rdpipe reports 1` | of the reports of the express path | the number of the link |
//! | `rdpipe digest 1` | the secrets of the digest | the number of the block |
//!
//! The cipher is 0 for a digest, 1 for AES-256-GCM, 2 for ChaCha20-Poly1305; the direction is 0 from the dialer to the
//! acceptor, and 1 back; the connection is the number of the rail. All integers are little-endian.
//!
//! # Nonces
//!
//! The nonce is 32 bits of zero and the offset of the chunk; of a report, its number. A chunk is sealed once, when it is
//! posted, and keeps its ciphertext and its tag when it is sent again: two tags under one nonce would reveal the key of
//! the authentication. The associated data are length, offset, cipher and kind, and not what changes when a chunk is
//! sent again: its slot, the count of consumed frames and the check of its header.
//!
//! # Digests
//!
//! A digest finds damage, and keeps no attacker out: it is no MAC. It is the xxh3-64 of the payload, digested again with
//! the offset, each time with a secret of the direction. So a chunk of another stream, of the other direction or of
//! another offset does not verify, and a chunk does not reveal the secrets.

use std::fmt;
#[cfg(feature = "cli")]
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use blake2::{Blake2s256, Digest};
use rdpipe_digest::{SECRET_BYTES, xxh3_64_with_secret, xxh3_64_with_seed};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{message::Token, noise::Role};
use crate::key::keyed_digest;

/// The size of a tag, in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// The tag of a sealed chunk.
pub(crate) type Tag = [u8; TAG_BYTES];

/// The number of bytes of a direction after which it gets a new key, as a power of two: 64 GiB.
const EPOCH_BYTES: u32 = 36;

/// The number of rounds in which the speed of a cipher is measured.
#[cfg(feature = "cli")]
const SPEED_ROUNDS: usize = 5;

/// The time of such a round: many chunks, also of a processor without instructions for AES.
#[cfg(feature = "cli")]
const SPEED_ROUND: Duration = Duration::from_millis(4);

/// The cipher of the data of a stream, which also authenticates it.
///
/// The messages of agents carry the number of the variant: a change of their order is a change of their wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Cipher {
    /// AES-256 in Galois/counter mode: the fastest where processors have instructions for it.
    #[serde(rename = "AES-256-GCM")]
    Aes256Gcm,
    /// The fastest without such instructions.
    #[serde(rename = "ChaCha20-Poly1305")]
    ChaCha20Poly1305,
}

impl Cipher {
    /// Returns the cipher that is fast on both hosts. `have_aes` is true if both processors have instructions for AES.
    pub(crate) fn fastest(have_aes: bool) -> Self {
        if have_aes {
            Self::Aes256Gcm
        } else {
            Self::ChaCha20Poly1305
        }
    }

    /// Returns how many bytes one thread of this host seals in a second, in chunks of this size. Takes some 20 ms.
    #[cfg(feature = "cli")]
    pub(crate) fn bytes_per_second(self, chunk_bytes: usize) -> u64 {
        let mut guard = StreamSeal::new(&Token([0; 32]), &Token([0; 32]), Role::Dialer, Some(self))
            .guard(Way::Out);
        let mut chunk = vec![0; chunk_bytes];
        let mut offset = 0;
        let mut round = || {
            let (start, first) = (Instant::now(), offset);
            while start.elapsed() < SPEED_ROUND {
                guard.protect(offset, &mut chunk);
                offset += chunk_bytes as u64;
            }
            let nanos = start.elapsed().as_nanos().max(1);
            u64::try_from(u128::from(offset - first) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
        };
        // Other load makes a round slower, and none faster.
        (0..SPEED_ROUNDS).map(|_| round()).max().unwrap_or(0)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// Returns true if this processor has instructions for AES and for the multiplication of GCM.
pub(crate) fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The way of bytes, as this end sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From this end to the peer.
    Out,
    /// From the peer to this end.
    In,
}

/// The secret of one stream, from which all keys of its data follow.
#[derive(Clone)]
pub(crate) struct StreamSeal {
    secret: Zeroizing<[u8; 32]>,
    role: Role,
    /// The cipher; none if a digest protects the chunks.
    cipher: Option<Cipher>,
    rail: u32,
}

impl StreamSeal {
    /// Derives the secret from the acceptor's `token` and the `random` bytes of the dialer. `role` is that of this end.
    pub(crate) fn new(token: &Token, random: &Token, role: Role, cipher: Option<Cipher>) -> Self {
        let hash = Blake2s256::new_with_prefix(token.0).chain_update(random.0);
        Self {
            secret: Zeroizing::new(hash.finalize().into()),
            role,
            cipher,
            rail: 0,
        }
    }

    /// Returns the cipher; none if a digest protects the chunks.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(dead_code, reason = "only RDMA has an express path")
    )]
    pub(crate) fn cipher(&self) -> Option<Cipher> {
        self.cipher
    }

    pub(crate) fn of_rail(&self, rail: u32) -> Self {
        let seal = self.clone();
        Self { rail, ..seal }
    }

    /// Returns what protects the chunks that go this way.
    pub(crate) fn guard(&self, way: Way) -> Guard {
        let keys = self.keys(way);
        Guard(match self.cipher {
            None => GuardKind::Digest(Box::new(DigestSecrets::new(&keys))),
            Some(cipher) => GuardKind::Cipher(Box::new(ChunkCipher::new(keys, cipher))),
        })
    }

    /// Returns what seals the reports of the express path that go this way over the link `generation`; none if they
    /// are not sealed.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(dead_code, reason = "only RDMA has an express path")
    )]
    pub(crate) fn reports(&self, way: Way, generation: u32) -> Option<ReportSeal> {
        let cipher = self.cipher?;
        let key = self
            .keys(way)
            .key(REPORTS_LABEL, cipher.number(), u64::from(generation));
        Some(ReportSeal {
            key: sealing_key(cipher, &key),
            cipher,
            next: 0,
        })
    }

    fn keys(&self, way: Way) -> DirectionKeys {
        let is_from_dialer = (self.role == Role::Dialer) == (way == Way::Out);
        DirectionKeys {
            secret: self.secret.clone(),
            direction: u8::from(!is_from_dialer),
            connection: self.rail,
        }
    }
}

const BULK_LABEL: &[u8] = b"rdpipe bulk 1";
#[cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, reason = "only RDMA has an express path")
)]
const REPORTS_LABEL: &[u8] = b"rdpipe reports 1";
const DIGEST_LABEL: &[u8] = b"rdpipe digest 1";

/// The secret of one direction of a rail.
struct DirectionKeys {
    secret: Zeroizing<[u8; 32]>,
    direction: u8,
    connection: u32,
}

impl DirectionKeys {
    fn key(&self, label: &[u8], cipher: u8, epoch: u64) -> Zeroizing<[u8; 32]> {
        let message = [
            label,
            &[cipher, self.direction],
            &self.connection.to_le_bytes(),
            &epoch.to_le_bytes(),
        ];
        Zeroizing::new(keyed_digest(&self.secret, &message.concat()))
    }
}

fn sealing_key(cipher: Cipher, key: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(cipher.algorithm(), key);
    LessSafeKey::new(key.expect("a key of both ciphers has 32 bytes"))
}

/// What the tag of a frame covers beside its payload.
#[derive(Clone, Copy)]
enum FrameKind {
    Chunk,
    Report,
}

/// Returns the nonce of a chunk at `offset`, or of the report with this number.
fn nonce(offset: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&offset.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn associated_data(cipher: Cipher, kind: FrameKind, length: usize, offset: u64) -> Aad<[u8; 14]> {
    let length = u32::try_from(length).expect("a chunk is at most 64 MiB");
    let mut bytes = [0; 14];
    bytes[0..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..12].copy_from_slice(&offset.to_le_bytes());
    bytes[12] = cipher.number();
    bytes[13] = match kind {
        FrameKind::Chunk => 0,
        FrameKind::Report => 1,
    };
    Aad::from(bytes)
}

/// What the header of a chunk says about its payload: the digest, or the tag. The other one is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// The digest of the payload; 0 if it is sealed.
    pub(crate) digest: u64,
    /// The tag of the sealed payload; zero if it is not.
    pub(crate) tag: Tag,
}

/// A payload does not match its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongMark {
    /// The digest does not match.
    Digest,
    /// The tag does not match, or there is a digest beside it.
    Tag,
}

/// Returns the digest over the chains of all rails, from the ends of the chains; that of one rail is the end of its
/// chain.
pub(crate) fn joined_digest(mut ends: impl Iterator<Item = u64>) -> u64 {
    let first = ends.next().unwrap_or(0);
    ends.fold(first, |joined, end| {
        xxh3_64_with_seed(joined, &end.to_le_bytes())
    })
}

/// What protects the chunks of one direction of a stream.
pub(crate) struct Guard(GuardKind);

enum GuardKind {
    Digest(Box<DigestSecrets>),
    Cipher(Box<ChunkCipher>),
}

impl Guard {
    /// Protects the payload of the chunk at `offset`: with a cipher, in place. An offset is protected once.
    pub(crate) fn protect(&mut self, offset: u64, payload: &mut [u8]) -> Mark {
        match &mut self.0 {
            GuardKind::Digest(secrets) => Mark {
                digest: secrets.digest(offset, payload),
                ..Mark::default()
            },
            GuardKind::Cipher(cipher) => Mark {
                tag: cipher.seal(offset, payload),
                ..Mark::default()
            },
        }
    }

    /// Checks the payload of the chunk at `offset`: with a cipher, opens it in place.
    /// After an error the payload may be anything.
    pub(crate) fn check(
        &mut self,
        offset: u64,
        mark: &Mark,
        payload: &mut [u8],
    ) -> Result<(), WrongMark> {
        match &mut self.0 {
            GuardKind::Digest(secrets) => {
                let wanted = Mark {
                    digest: secrets.digest(offset, payload),
                    ..Mark::default()
                };
                if *mark == wanted {
                    Ok(())
                } else {
                    Err(WrongMark::Digest)
                }
            }
            GuardKind::Cipher(_) if mark.digest != 0 => Err(WrongMark::Tag),
            GuardKind::Cipher(cipher) => cipher.open(offset, &mark.tag, payload),
        }
    }
}

struct DigestSecrets {
    payload: Zeroizing<[u8; SECRET_BYTES]>,
    chunk: Zeroizing<[u8; SECRET_BYTES]>,
}

impl DigestSecrets {
    fn new(keys: &DirectionKeys) -> Self {
        let secret = |first: u64| {
            let mut secret = Zeroizing::new([0; SECRET_BYTES]);
            for (number, block) in (first..).zip(secret.chunks_exact_mut(32)) {
                block.copy_from_slice(&*keys.key(DIGEST_LABEL, 0, number));
            }
            secret
        };
        Self {
            payload: secret(0),
            chunk: secret(6),
        }
    }

    fn digest(&self, offset: u64, payload: &[u8]) -> u64 {
        let digest = xxh3_64_with_secret(&self.payload, payload);
        let mut chunk = [0; 16];
        chunk[..8].copy_from_slice(&digest.to_le_bytes());
        chunk[8..].copy_from_slice(&offset.to_le_bytes());
        xxh3_64_with_secret(&self.chunk, &chunk)
    }
}

struct ChunkCipher {
    keys: DirectionKeys,
    cipher: Cipher,
    epoch: u64,
    /// The key of the epoch. A key that is dropped is wiped.
    key: LessSafeKey,
}

impl ChunkCipher {
    fn new(keys: DirectionKeys, cipher: Cipher) -> Self {
        let key = keys.key(BULK_LABEL, cipher.number(), 0);
        Self {
            key: sealing_key(cipher, &key),
            keys,
            cipher,
            epoch: 0,
        }
    }

    fn key(&mut self, offset: u64) -> &LessSafeKey {
        let epoch = offset >> EPOCH_BYTES;
        if epoch != self.epoch {
            let key = self.keys.key(BULK_LABEL, self.cipher.number(), epoch);
            (self.epoch, self.key) = (epoch, sealing_key(self.cipher, &key));
        }
        &self.key
    }

    fn seal(&mut self, offset: u64, payload: &mut [u8]) -> Tag {
        let data = associated_data(self.cipher, FrameKind::Chunk, payload.len(), offset);
        let sealed = self
            .key(offset)
            .seal_in_place_separate_tag(nonce(offset), data, payload);
        tag(sealed)
    }

    fn open(&mut self, offset: u64, tag: &Tag, payload: &mut [u8]) -> Result<(), WrongMark> {
        let data = associated_data(self.cipher, FrameKind::Chunk, payload.len(), offset);
        let opened = self
            .key(offset)
            .open_in_place_separate_tag(nonce(offset), data, tag, payload);
        opened.map(drop).map_err(|_| WrongMark::Tag)
    }
}

fn tag(sealed: Result<aws_lc_rs::aead::Tag, aws_lc_rs::error::Unspecified>) -> Tag {
    let tag = sealed.expect("a chunk is shorter than the limit of both ciphers");
    tag.as_ref().try_into().expect("a tag has 16 bytes")
}

/// What seals the reports of an express path that go one way over one link: the counts of consumed frames.
#[cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, reason = "only RDMA has an express path")
)]
pub(crate) struct ReportSeal {
    key: LessSafeKey,
    cipher: Cipher,
    /// The number of the next report.
    next: u64,
}

#[cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, reason = "only RDMA has an express path")
)]
impl ReportSeal {
    /// Returns the tag of the next report, which carries the count `consumed`.
    pub(crate) fn seal(&mut self, consumed: u32) -> Tag {
        let (nonce, data) = self.next(consumed);
        tag(self.key.seal_in_place_separate_tag(nonce, data, &mut []))
    }

    /// Checks the tag of the next report.
    /// Fails if the count is not the peer's.
    pub(crate) fn check(&mut self, consumed: u32, tag: &Tag) -> Result<(), WrongMark> {
        let (nonce, data) = self.next(consumed);
        let checked = self
            .key
            .open_in_place_separate_tag(nonce, data, tag, &mut []);
        checked.map(drop).map_err(|_| WrongMark::Tag)
    }

    fn next(&mut self, consumed: u32) -> (Nonce, Aad<[u8; 14]>) {
        let number = self.next;
        self.next += 1;
        let data = associated_data(self.cipher, FrameKind::Report, 0, u64::from(consumed));
        (nonce(number), data)
    }
}

#[cfg(any(test, fuzzing))]
impl StreamSeal {
    /// Makes the seal of a stream for tests, which `seed` distinguishes from that of others.
    pub(crate) fn of_seed(seed: u8, role: Role, cipher: Option<Cipher>) -> Self {
        Self::new(&Token([seed; 32]), &Token([seed; 32]), role, cipher)
    }
}

#[cfg(test)]
impl Guard {
    /// Makes what protects one direction of a stream without a cipher, for tests.
    pub(crate) fn of_seed(seed: u8) -> Self {
        StreamSeal::of_seed(seed, Role::Dialer, None).guard(Way::Out)
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    fn seal(role: Role) -> StreamSeal {
        StreamSeal::of_seed(3, role, Some(Cipher::Aes256Gcm))
    }

    fn marked(guard: &mut Guard, offset: u64, payload: &[u8]) -> (String, String) {
        let mut payload = payload.to_vec();
        let mark = guard.protect(offset, &mut payload);
        assert_eq!(mark.digest, 0, "a digest would tell equal payloads");
        (HEXLOWER.encode(&payload), HEXLOWER.encode(&mark.tag))
    }

    /// The numbers come from independent implementations of HMAC, BLAKE2s and AES-GCM. A change needs another version of
    /// the protocol.
    #[test]
    fn keys_and_frames_are_those_of_this_version() {
        let key = |way, label, cipher, epoch| {
            HEXLOWER.encode(&*seal(Role::Dialer).keys(way).key(label, cipher, epoch))
        };
        for (way, cipher, epoch, expected) in [
            (
                Way::Out,
                1,
                0,
                "fa3420a0c0d60253a5acd3d4c6c36fb8d70664e0ddad303948112aa0b5a07f2a",
            ),
            (
                Way::In,
                1,
                0,
                "d654362f3cc6b24fcc774fd2d9e8071331def1fb926b0434c4deb75427390140",
            ),
            (
                Way::Out,
                2,
                1,
                "6bf9c3c35a43f70a3370e5215a96ff06c65c9affe08b26f6487977907cc51b50",
            ),
        ] {
            assert_eq!(key(way, BULK_LABEL, cipher, epoch), expected);
        }
        let mut guard = seal(Role::Dialer).guard(Way::Out);
        for (offset, payload, sealed, tag) in [
            (
                0,
                &b"hello, world\n"[..],
                "9a2d0d7ad9062780cce45e7afc",
                "8311ada891e27175679042d43763aabf",
            ),
            (
                13,
                b"goodbye\n",
                "7db2940f8dff34c1",
                "8fb94ea5ed8c437adc9556021cda9c2a",
            ),
            (
                1 << EPOCH_BYTES,
                b"ok",
                "6fcd",
                "007ad8405608730029736df3a435052b",
            ),
        ] {
            let expected = (sealed.to_owned(), tag.to_owned());
            assert_eq!(marked(&mut guard, offset, payload), expected);
        }
        let mut reports = seal(Role::Dialer).reports(Way::Out, 5).unwrap();
        let tag = HEXLOWER.encode(&reports.seal(16));
        assert_eq!(tag, "f4c2fb1bbc927af2c71c6532f1d7f54e");
    }

    #[test]
    fn what_one_end_seals_the_other_opens() {
        for (role, peer) in [
            (Role::Dialer, Role::Acceptor),
            (Role::Acceptor, Role::Dialer),
        ] {
            let (mut out, mut back) = (seal(role).guard(Way::Out), seal(peer).guard(Way::In));
            // Across the border of two keys, there and back.
            let border = 1 << EPOCH_BYTES;
            for offset in [0, border - 5, border, 5, 3 * border] {
                let mut payload = *b"bytes";
                let mark = out.protect(offset, &mut payload);
                assert_ne!(&payload, b"bytes");
                assert_eq!(back.check(offset, &mark, &mut payload), Ok(()));
                assert_eq!(&payload, b"bytes");
            }
        }
    }

    #[test]
    fn a_report_is_good_once_and_for_its_link_and_its_way() {
        let ours = |generation| seal(Role::Dialer).reports(Way::Out, generation).unwrap();
        let theirs = |way, generation| seal(Role::Acceptor).reports(way, generation).unwrap();
        let (mut sealing, mut checking) = (ours(1), theirs(Way::In, 1));
        let tags = [16, 32].map(|consumed| sealing.seal(consumed));
        assert_eq!(checking.check(16, &tags[0]), Ok(()));
        assert_eq!(checking.check(48, &tags[1]), Err(WrongMark::Tag));
        for (way, generation) in [(Way::In, 2), (Way::Out, 1)] {
            let checked = theirs(way, generation).check(16, &tags[0]);
            assert_eq!(checked, Err(WrongMark::Tag));
        }
    }

    /// Both ends must have the token and the random bytes.
    #[test]
    fn another_secret_opens_nothing() {
        let cipher = Some(Cipher::ChaCha20Poly1305);
        let [one, other] = [[1; 32], [2; 32]].map(Token);
        let mut payload = *b"bytes";
        let mut out = StreamSeal::new(&one, &one, Role::Dialer, cipher).guard(Way::Out);
        let mark = out.protect(0, &mut payload);
        for (token, random) in [(&one, &other), (&other, &one)] {
            let mut back = StreamSeal::new(token, random, Role::Acceptor, cipher).guard(Way::In);
            let opened = back.check(0, &mark, &mut payload.clone());
            assert_eq!(opened, Err(WrongMark::Tag));
        }
    }

    #[test]
    fn a_payload_without_its_seal_is_refused() {
        let mut payload = *b"bytes";
        let mut plain = StreamSeal::of_seed(3, Role::Dialer, None).guard(Way::Out);
        let mark = plain.protect(0, &mut payload);
        assert_eq!(&payload, b"bytes");
        let mut sealed = seal(Role::Acceptor).guard(Way::In);
        let opened = sealed.check(0, &mark, &mut payload);
        assert_eq!(opened, Err(WrongMark::Tag));
    }
}
