//! Lists of messages that are decoded only up to a length: a short encoding of many entries takes no memory.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

/// The most extended attributes of an entry: Linux lists 64 KiB of names, and the shortest has four bytes.
pub(crate) const MAX_ATTRIBUTES: usize = 16 << 10;

/// Decodes a list of at most `MOST` entries. For `#[serde(deserialize_with)]`.
/// Fails if the list is longer, or an entry is invalid.
pub(crate) fn at_most<'de, const MOST: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    AtMost::<MOST, T>::deserialize(deserializer).map(|list| list.0)
}

/// Decodes an optional list of at most `MOST` entries. For `#[serde(deserialize_with)]`.
/// Fails if the list is longer, or an entry is invalid.
pub(crate) fn at_most_if_any<'de, const MOST: usize, T, D>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let list = Option::<AtMost<MOST, T>>::deserialize(deserializer)?;
    Ok(list.map(|list| list.0))
}

/// A list of at most `MOST` entries.
struct AtMost<const MOST: usize, T>(Vec<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Deserialize<'de> for AtMost<MOST, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<MOST, T>(PhantomData))
    }
}

struct ListVisitor<const MOST: usize, T>(PhantomData<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for ListVisitor<MOST, T> {
    type Value = AtMost<MOST, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::custom("a list that is too long"));
            }
            list.push(entry);
        }
        Ok(AtMost(list))
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Lists {
        #[serde(deserialize_with = "at_most::<3, _, _>")]
        list: Vec<u8>,
        #[serde(deserialize_with = "at_most_if_any::<2, _, _>")]
        other: Option<Vec<u8>>,
    }

    #[test]
    fn a_list_that_is_too_long_is_not_decoded() {
        let decodes = |list: &[u8], other: Option<&[u8]>| {
            let lists = Lists {
                list: list.to_vec(),
                other: other.map(<[u8]>::to_vec),
            };
            let decoded = postcard::from_bytes(&postcard::to_stdvec(&lists).unwrap());
            decoded == Ok(lists)
        };
        assert!(decodes(b"", None) && decodes(b"123", Some(b"12")));
        assert!(!decodes(b"1234", None) && !decodes(b"", Some(b"123")));
    }
}
