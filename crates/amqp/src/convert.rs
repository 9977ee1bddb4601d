//! Conversions between delayline's values and the client library's.

use amiquip::{AmqpProperties, AmqpValue, FieldTable};

use delayline_core::{
    message::{Headers, Properties, Value},
    topology::Argument,
};

/// Delivery mode 2: the message survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// The number that these bytes are in network order, as in all versions of AMQP.
pub(crate) fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(super) fn argument_table<'a>(
    arguments: impl IntoIterator<Item = (&'a String, &'a Argument)>,
) -> FieldTable {
    arguments
        .into_iter()
        .map(|(name, argument)| {
            let value = match argument {
                // Always 64 bits: the TTL of level 22 and above needs them.
                Argument::Number(number) => AmqpValue::LongLongInt(*number),
                Argument::Text(text) => AmqpValue::LongString(text.clone()),
                Argument::Flag(flag) => AmqpValue::Boolean(*flag),
            };
            (name.clone(), value)
        })
        .collect()
}

pub(super) fn properties(properties: Properties, headers: Headers) -> AmqpProperties {
    let mut wire = AmqpProperties::default().with_delivery_mode(PERSISTENT).with_headers(table(headers));
    macro_rules! set {
        ($($field:ident => $setter:ident),* $(,)?) => {$(
            if let Some(value) = properties.$field {
                wire = wire.$setter(value);
            }
        )*};
    }
    set! {
        content_type => with_content_type,
        content_encoding => with_content_encoding,
        priority => with_priority,
        correlation_id => with_correlation_id,
        reply_to => with_reply_to,
        expiration => with_expiration,
        message_id => with_message_id,
        timestamp => with_timestamp,
        kind => with_type_,
        user_id => with_user_id,
        app_id => with_app_id,
    }
    wire
}

pub(super) fn from_properties(wire: &AmqpProperties) -> (Properties, Headers) {
    let properties = Properties {
        content_type: wire.content_type().clone(),
        content_encoding: wire.content_encoding().clone(),
        priority: *wire.priority(),
        correlation_id: wire.correlation_id().clone(),
        reply_to: wire.reply_to().clone(),
        expiration: wire.expiration().clone(),
        message_id: wire.message_id().clone(),
        timestamp: *wire.timestamp(),
        kind: wire.type_().clone(),
        user_id: wire.user_id().clone(),
        app_id: wire.app_id().clone(),
    };
    (properties, wire.headers().as_ref().map(from_table).unwrap_or_default())
}

fn table(headers: Headers) -> FieldTable {
    headers.into_iter().map(|(name, value)| (name, to_wire(value))).collect()
}

fn from_table(table: &FieldTable) -> Headers {
    table.iter().map(|(name, value)| (name.clone(), from_wire(value))).collect()
}

fn to_wire(value: Value) -> AmqpValue {
    match value {
        Value::Bool(value) => AmqpValue::Boolean(value),
        Value::I8(value) => AmqpValue::ShortShortInt(value),
        Value::U8(value) => AmqpValue::ShortShortUInt(value),
        Value::I16(value) => AmqpValue::ShortInt(value),
        Value::U16(value) => AmqpValue::ShortUInt(value),
        Value::I32(value) => AmqpValue::LongInt(value),
        Value::U32(value) => AmqpValue::LongUInt(value),
        Value::I64(value) => AmqpValue::LongLongInt(value),
        Value::F32(value) => AmqpValue::Float(value),
        Value::F64(value) => AmqpValue::Double(value),
        Value::Decimal { scale, value } => {
            AmqpValue::DecimalValue(amq_protocol_types::DecimalValue { scale, value })
        }
        Value::Text(text) => AmqpValue::LongString(text),
        Value::Bytes(bytes) => AmqpValue::ByteArray(bytes),
        Value::Array(values) => AmqpValue::FieldArray(values.into_iter().map(to_wire).collect()),
        Value::Timestamp(seconds) => AmqpValue::Timestamp(seconds),
        Value::Table(headers) => AmqpValue::FieldTable(table(headers)),
        Value::Void => AmqpValue::Void,
    }
}

fn from_wire(value: &AmqpValue) -> Value {
    match value {
        AmqpValue::Boolean(value) => Value::Bool(*value),
        AmqpValue::ShortShortInt(value) => Value::I8(*value),
        AmqpValue::ShortShortUInt(value) => Value::U8(*value),
        AmqpValue::ShortInt(value) => Value::I16(*value),
        AmqpValue::ShortUInt(value) => Value::U16(*value),
        AmqpValue::LongInt(value) => Value::I32(*value),
        AmqpValue::LongUInt(value) => Value::U32(*value),
        AmqpValue::LongLongInt(value) => Value::I64(*value),
        AmqpValue::Float(value) => Value::F32(*value),
        AmqpValue::Double(value) => Value::F64(*value),
        AmqpValue::DecimalValue(decimal) => Value::Decimal { scale: decimal.scale, value: decimal.value },
        AmqpValue::LongString(text) => Value::Text(text.clone()),
        AmqpValue::ByteArray(bytes) => Value::Bytes(bytes.clone()),
        AmqpValue::FieldArray(values) => Value::Array(values.iter().map(from_wire).collect()),
        AmqpValue::Timestamp(seconds) => Value::Timestamp(*seconds),
        AmqpValue::FieldTable(table) => Value::Table(from_table(table)),
        AmqpValue::Void => Value::Void,
    }
}
