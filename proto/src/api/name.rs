//! Names with a fixed list, which stay readable when a newer program has more of them.

#[cfg(feature = "schema")]
use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::VariantArray;

/// A value that JSON has as one of a fixed list of words.
pub trait Name: Copy + FromStr + Into<&'static str> + PartialEq + VariantArray {
    /// The word.
    fn as_str(self) -> &'static str {
        self.into()
    }
}

impl<T: Copy + FromStr + Into<&'static str> + PartialEq + VariantArray> Name for T {}

/// A name this version knows, or the word of another version as it came.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Named<T> {
    /// A name of the list.
    Known(T),
    /// A word that is not on the list; empty where nothing was said.
    Other(String),
}

impl<T: Name> Named<T> {
    /// The name of this word.
    pub fn of(word: &str) -> Self {
        word.parse().map_or_else(|_| Self::Other(word.to_string()), Self::Known)
    }

    /// The name, where this version knows it.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(name) => Some(*name),
            Self::Other(_) => None,
        }
    }

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

impl<T: Name> From<T> for Named<T> {
    fn from(name: T) -> Self {
        Self::Known(name)
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
        Ok(Self::of(&Cow::<str>::deserialize(deserializer)?))
    }
}

/// The words that this version writes.
#[cfg(feature = "schema")]
impl<T: Name> schemars::JsonSchema for Named<T> {
    fn schema_name() -> Cow<'static, str> {
        let path = type_name::<T>();
        path.rsplit("::").next().unwrap_or(path).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        memtape_core::tape::schema::words::<T>(generator)
    }
}

#[cfg(test)]
mod tests {
    use strum::{EnumString, IntoStaticStr};

    use super::*;

    /// For the test.
    #[derive(Clone, Copy, Debug, PartialEq, EnumString, IntoStaticStr, VariantArray)]
    #[strum(serialize_all = "snake_case")]
    enum Colour {
        Red,
        Green,
    }

    #[test]
    fn a_name_of_a_newer_program_stays_readable() {
        for word in ["red", "green", "infrared", ""] {
            let name: Named<Colour> = Named::of(word);
            assert_eq!((name.as_str(), name.to_string().as_str()), (word, word));
        }
        assert_eq!(Named::of("green"), Colour::Green);
        assert_eq!(Named::<Colour>::of("infrared"), Named::Other("infrared".to_string()));
    }
}
