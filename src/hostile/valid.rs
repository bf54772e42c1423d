//! Random valid values of any type that the wire carries. Pure, no I/O.
//!
//! [`valid`] deserializes a type from decisions instead of bytes, so a message that gets a field or a variant needs no
//! change here. Names come from a small list, so that they meet each other and what is there already; numbers are
//! mostly small, and else at a limit.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess,
        Visitor, value::Error,
    },
    forward_to_deserialize_any,
};

/// Decisions: those of a seed, or those of a fuzzer's bytes.
pub(crate) struct Choices<'a> {
    source: ChoiceSource<'a>,
    /// True while every list of bytes is the name of an entry.
    names_only: bool,
}

enum ChoiceSource<'a> {
    /// The state of splitmix64, in which every seed is a good one.
    Seed(u64),
    /// Bytes; after them every decision is 0.
    Script(&'a [u8]),
}

impl<'a> Choices<'a> {
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self {
            source: ChoiceSource::Seed(seed),
            names_only: false,
        }
    }

    /// Returns the decisions that bytes make, and 0 after them.
    pub(crate) fn of_script(script: &'a [u8]) -> Self {
        Self {
            source: ChoiceSource::Script(script),
            names_only: false,
        }
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        match &mut self.source {
            ChoiceSource::Seed(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                usize::try_from((mixed ^ (mixed >> 31)) >> 1).unwrap_or(0) % end
            }
            ChoiceSource::Script(bytes) => {
                let Some((&first, rest)) = bytes.split_first() else {
                    return 0;
                };
                *bytes = rest;
                usize::from(first) % end
            }
        }
    }

    /// Returns true once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// Returns one of these.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Returns a valid value of a type. At the end of a script it is the first value of the type.
pub(crate) fn valid<T: DeserializeOwned>(choices: &mut Choices<'_>) -> T {
    // A name with a slash is no name, for example: then the next decisions make another value.
    for _ in 0..TRIES {
        choices.names_only = choices.below(2) == 0;
        if let Ok(value) = T::deserialize(Decision::new(choices)) {
            return value;
        }
    }
    let value = T::deserialize(Decision::new(&mut Choices::of_script(&[])));
    value.unwrap_or_else(|error| unreachable!("{}: {error}", std::any::type_name::<T>()))
}

/// The attempts to make a value whose type refuses most of them.
const TRIES: usize = 32;

/// The names, paths and patterns: [`NAMES`] names, and then what is none. The first one is valid as each of them.
const WORDS: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"*",
    b"\xff\x01",
    b".a.rdcp-part",
    b".a.rdcp-map",
    b"user.a",
    b"system.posix_acl_default",
    b"security.capability",
    &[b'n'; 255],
    b"a/b",
    b"b/a/c",
    b"**/a[0-9]",
    &LONG_PATH,
];

/// The words of [`WORDS`] that are names of entries.
const NAMES: usize = 13;

const LONG_PATH: [u8; 1799] = {
    let mut path = [b'/'; 1799];
    let mut at = 0;
    while at < path.len() {
        path[at] = b'd';
        at += 2;
    }
    path
};

/// The numbers that are not small.
const NUMBERS: &[u64] = &[
    4,
    0o644,
    0o7777,
    4096,
    1 << 16,
    1 << 20,
    1 << 30,
    1 << 40,
    u64::MAX >> 1,
    u64::MAX,
];

/// The lengths of lists. The first one makes a name, whose length is its own.
const LENGTHS: &[usize] = &[1, 0, 2, 3, 1, 2, 1, 400];

/// Deserializes one value from decisions.
struct Decision<'c, 's> {
    choices: &'c mut Choices<'s>,
    /// The byte that this is if it is a byte, and whether it was one.
    byte: Option<(u8, &'c mut bool)>,
}

impl<'c, 's> Decision<'c, 's> {
    fn new(choices: &'c mut Choices<'s>) -> Self {
        let byte = None;
        Self { choices, byte }
    }

    fn number(&mut self, most: u64) -> u64 {
        let number = match self.choices.below(16) {
            small @ 0..12 => small as u64 / 3,
            _ => self.choices.one_of(NUMBERS),
        };
        number.min(most)
    }

    fn word(&mut self) -> &'static [u8] {
        let count = if self.choices.names_only {
            NAMES
        } else {
            WORDS.len()
        };
        self.choices.one_of(&WORDS[..count])
    }

    fn fields(self, count: usize) -> Fields<'c, 's> {
        let choices = self.choices;
        Fields { choices, count }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            let number = self.number(<$type>::MAX.try_into().unwrap_or(u64::MAX));
            visitor.$visit(<$type>::try_from(number).unwrap_or(<$type>::MAX))
        }
    )*};
}

impl<'de> Deserializer<'de> for Decision<'_, '_> {
    type Error = Error;

    numbers! {
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
    }

    fn deserialize_u8<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        if let Some((byte, is_byte)) = self.byte {
            *is_byte = true;
            return visitor.visit_u8(byte);
        }
        let number = self.number(u8::MAX.into());
        visitor.visit_u8(u8::try_from(number).unwrap_or(u8::MAX))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.choices.below(2) == 1)
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(&String::from_utf8_lossy(self.word()))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    /// Takes as many decisions as a list of bytes, so that a script means the same for both.
    fn deserialize_bytes<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let word = self.word();
        let is_empty = self.choices.one_of(LENGTHS) == 0;
        visitor.visit_bytes(if is_empty { b"" } else { word })
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.choices.below(2) == 0 {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let word = self.word();
        let left = self.choices.one_of(LENGTHS);
        let choices = self.choices;
        visitor.visit_seq(List {
            choices,
            word,
            at: 0,
            left,
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        count: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.fields(count))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.fields(fields.len()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let variant = self.choices.below(variants.len());
        visitor.visit_enum(Variant(variant, self))
    }

    /// Refuses types that no message has.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("no decision makes such a value"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        i8 f32 f64 char unit_struct tuple_struct map identifier ignored_any
    }
}

/// The fields of a struct or a tuple.
struct Fields<'c, 's> {
    choices: &'c mut Choices<'s>,
    count: usize,
}

impl<'de> SeqAccess<'de> for Fields<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.count == 0 {
            return Ok(None);
        }
        self.count -= 1;
        seed.deserialize(Decision::new(self.choices)).map(Some)
    }
}

/// The elements of a list. A list of bytes is one of [`WORDS`].
struct List<'c, 's> {
    choices: &'c mut Choices<'s>,
    word: &'static [u8],
    at: usize,
    left: usize,
}

impl<'de> SeqAccess<'de> for List<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut is_byte = false;
        let element = seed.deserialize(Decision {
            choices: self.choices,
            byte: Some((self.word[self.at % self.word.len()], &mut is_byte)),
        })?;
        self.at += 1;
        self.left = if is_byte {
            self.word.len() - self.at
        } else {
            self.left - 1
        };
        Ok(Some(element))
    }
}

struct Variant<'c, 's>(usize, Decision<'c, 's>);

impl<'de, 'c, 's> EnumAccess<'de> for Variant<'c, 's> {
    type Error = Error;
    type Variant = Decision<'c, 's>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Error> {
        let Self(variant, decision) = self;
        let variant = u64::try_from(variant).unwrap_or(0).into_deserializer();
        Ok((seed.deserialize(variant)?, decision))
    }
}

impl<'de> VariantAccess<'de> for Decision<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(self.fields(count))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(self.fields(fields.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        copy::{
            order::CopyOrder,
            question::{FromDestination, FromSource},
            record::LaneRecord,
        },
        forward::tunnel::messages::{OpenTarget, TunnelMessage},
        ssh::protocol::{Order, ToAgent},
    };

    fn kinds<T: DeserializeOwned + std::fmt::Debug>() -> usize {
        let mut choices = Choices::of_seed(1);
        let all = (0..2000).map(|_| valid::<T>(&mut choices));
        let kinds: std::collections::HashSet<_> =
            all.map(|value| std::mem::discriminant(&value)).collect();
        // The end of a script makes a value too.
        valid::<T>(&mut Choices::of_script(&[]));
        kinds.len()
    }

    #[test]
    fn every_kind_of_message_is_made() {
        assert_eq!(kinds::<ToAgent>(), 8);
        assert!(kinds::<LaneRecord>() >= 12);
        assert!(kinds::<FromSource>() >= 4 && kinds::<FromDestination>() >= 3);
        assert!(kinds::<TunnelMessage>() >= 4 && kinds::<OpenTarget>() >= 3);
        assert_eq!((kinds::<Order>(), kinds::<CopyOrder>()), (1, 1));
    }

    #[test]
    fn a_seed_makes_the_same_values_again() {
        let made = |seed| {
            let mut choices = Choices::of_seed(seed);
            (0..20)
                .map(|_| valid::<LaneRecord>(&mut choices))
                .collect::<Vec<_>>()
        };
        assert_eq!(made(7), made(7));
        assert_ne!(made(7), made(8));
    }
}
