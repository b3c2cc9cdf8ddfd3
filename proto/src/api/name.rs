//! Names with a fixed list, which stay readable when a newer program has more of them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that JSON has as one of a fixed list of words.
pub trait Name: Copy + PartialEq + 'static {
    /// Name of the list in the OpenAPI document.
    const LIST: &'static str;
    /// All values.
    const ALL: &'static [Self];

    /// The word.
    fn as_str(self) -> &'static str;
}

/// A name this version knows, or the word of another version as it came.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Named<T> {
    /// A name of the list.
    Known(T),
    /// A word that is not on the list; empty where nothing was said.
    Other(String),
}

impl<T: Name> Named<T> {
    /// The word.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(name) => name.as_str(),
            Self::Other(word) => word,
        }
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl<T> From<T> for Named<T>
where
    T: Name,
{
    fn from(name: T) -> Self {
        Self::Known(name)
    }
}

impl<T: Name> From<&str> for Named<T> {
    fn from(word: &str) -> Self {
        let known = T::ALL.iter().copied().find(|name| name.as_str() == word);
        known.map_or_else(|| Self::Other(word.to_string()), Self::Known)
    }
}

impl<T: Name> PartialEq<T> for Named<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(name) if name == other)
    }
}

impl<T: Name> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: Name> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Name> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(Cow::<str>::deserialize(deserializer)?.as_ref()))
    }
}

/// The words that this version writes.
impl<T: Name> JsonSchema for Named<T> {
    fn schema_name() -> Cow<'static, str> {
        T::LIST.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<&str> = T::ALL.iter().map(|name| name.as_str()).collect();
        json_schema!({ "type": "string", "enum": words })
    }
}

/// Defines an enum that is a [`Name`].
macro_rules! names {
    (
        $(#[$about:meta])*
        $vis:vis enum $list:ident { $($(#[$doc:meta])* $name:ident = $word:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        $vis enum $list { $($(#[$doc])* $name,)+ }

        impl $crate::api::Name for $list {
            const LIST: &'static str = stringify!($list);
            const ALL: &'static [Self] = &[$(Self::$name,)+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

/// Makes a [`Name`] of an enum of core that has an `as_str`. A value that the list forgets does
/// not compile.
macro_rules! listed {
    ($list:ident { $($name:ident),+ $(,)? }) => {
        impl $crate::api::Name for $list {
            const LIST: &'static str = stringify!($list);
            const ALL: &'static [Self] = &[$(Self::$name,)+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$name)|+ => $list::as_str(self) }
            }
        }
    };
}

pub(super) use {listed, names};

#[cfg(test)]
mod tests {
    use super::*;

    names! {
        /// For the test.
        enum Colour {
            /// Red.
            Red = "red",
            /// Green.
            Green = "green",
        }
    }

    #[test]
    fn a_name_of_a_newer_program_stays_readable() {
        for word in ["red", "green", "infrared", ""] {
            let name: Named<Colour> = word.into();
            assert_eq!((name.as_str(), name.to_string().as_str()), (word, word));
        }
        assert_eq!(Named::from("green"), Colour::Green);
        assert_eq!(Named::<Colour>::from("infrared"), Named::Other("infrared".to_string()));
    }
}
