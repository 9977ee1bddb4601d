//! Values as they are written in records.

/// A delay as a number of seconds.
pub(crate) mod seconds {
    use delayline_core::codec::Delay;
    use serde::Deserialize;

    pub(crate) fn serialize<S: serde::Serializer>(delay: &Delay, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(delay.seconds())
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Delay, D::Error> {
        Delay::from_seconds(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// An app key as text.
pub(crate) mod app_key {
    use delayline_core::codec::AppKey;
    use serde::Deserialize;

    pub(crate) fn serialize<S: serde::Serializer>(app: &AppKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(app.as_str())
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<AppKey, D::Error> {
        AppKey::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Bytes in base64.
pub(crate) mod bytes {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use serde::Deserialize;

    pub(crate) fn serialize<S: serde::Serializer>(body: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(body))
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        BASE64_STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
