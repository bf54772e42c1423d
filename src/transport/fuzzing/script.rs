//! A fuzzer's bytes as a list of small decisions.

/// Reads bytes as numbers and pieces. At the end of the bytes there are no more decisions.
pub(crate) struct FuzzScript<'a>(&'a [u8]);

impl<'a> FuzzScript<'a> {
    /// Returns a script that reads `bytes` from their beginning.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte; none at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Returns a number below `end`, which must not be 0; at the end of the bytes, 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % end
    }

    /// Returns true or false; at the end of the bytes, false.
    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns a number of 16 bits; at the end of the bytes, 0.
    pub(crate) fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    /// Returns a piece: its length in one byte, then its bytes, as many as there are.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (piece, rest) = self.0.split_at(count);
        self.0 = rest;
        piece
    }
}
