//! Publishing from a tokio service with `lapin`: the routing key, the properties and the
//! headers come from this library, the connection, confirms and returns are lapin's.
//!
//!     cargo run --example tokio_lapin -- amqp://guest:guest@localhost/ billing 90s 'invoice 17'

use std::{error::Error, fmt, process::ExitCode};

use delayline::{
    Message,
    message::{Headers, InvalidMessage, Value, Wire},
    topology::{Names, SetName, Unit},
};
use jiff::Timestamp;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, DecimalValue, FieldTable},
};

/// Why the broker does not have a message.
#[derive(Debug)]
enum NotSent {
    /// It cannot be sent; nothing was.
    Invalid(InvalidMessage),
    /// No queue took it: the set is not installed as it should be.
    Returned(String),
    /// The broker would not store it. Trying again later is safe.
    Refused,
    /// Connection or channel are gone. The broker may have the message or not; sending it
    /// again on a new connection can deliver it twice.
    Lost(lapin::Error),
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Returned(text) => write!(f, "no queue took the message: {text}"),
            Self::Refused => f.write_str("the broker refused to store the message; try again later"),
            Self::Lost(error) => write!(f, "not confirmed: {error}"),
        }
    }
}

impl Error for NotSent {}

/// Publishes a message and returns once the broker has confirmed it. The channel is in confirm
/// mode.
async fn publish(channel: &Channel, message: &Message) -> Result<(), NotSent> {
    let wire = Wire::at(message, Unit::SECOND, Timestamp::now()).map_err(NotSent::Invalid)?;
    let entry = Names::new(SetName::default()).entry();
    // Mandatory, so that a message which no queue takes comes back instead of vanishing.
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published = channel
        .basic_publish(
            entry.as_str().into(),
            wire.routing_key.as_str().into(),
            options,
            &message.body,
            properties(&wire),
        )
        .await
        .map_err(NotSent::Lost)?;
    match published.await.map_err(NotSent::Lost)? {
        Confirmation::Ack(None) => Ok(()),
        // A message that comes back is acknowledged all the same.
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
            Err(NotSent::Returned(returned.reply_text.to_string()))
        }
        Confirmation::Nack(None) | Confirmation::NotRequested => Err(NotSent::Refused),
    }
}

fn properties(wire: &Wire) -> BasicProperties {
    // Delivery mode 2: the broker keeps the message over a restart.
    let mut properties = BasicProperties::default().with_delivery_mode(2).with_headers(table(&wire.headers));
    if let Some(content_type) = &wire.properties.content_type {
        properties = properties.with_content_type(content_type.as_str().into());
    }
    if let Some(id) = &wire.properties.message_id {
        properties = properties.with_message_id(id.as_str().into());
    }
    if let Some(id) = &wire.properties.correlation_id {
        properties = properties.with_correlation_id(id.as_str().into());
    }
    // And so on, with as many of the others as your service sets.
    properties
}

fn table(headers: &Headers) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, header) in headers {
        table.insert(name.as_str().into(), value(header));
    }
    table
}

fn value(value: &Value) -> AMQPValue {
    match value {
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::I8(value) => AMQPValue::ShortShortInt(*value),
        Value::U8(value) => AMQPValue::ShortShortUInt(*value),
        Value::I16(value) => AMQPValue::ShortInt(*value),
        Value::U16(value) => AMQPValue::ShortUInt(*value),
        Value::I32(value) => AMQPValue::LongInt(*value),
        Value::U32(value) => AMQPValue::LongUInt(*value),
        Value::I64(value) => AMQPValue::LongLongInt(*value),
        Value::F32(value) => AMQPValue::Float(*value),
        Value::F64(value) => AMQPValue::Double(*value),
        Value::Decimal { scale, value } => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        Value::Text(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Bytes(bytes) => AMQPValue::ByteArray(bytes.as_slice().into()),
        Value::Array(values) => {
            AMQPValue::FieldArray(values.iter().map(self::value).collect::<Vec<_>>().into())
        }
        Value::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        Value::Table(headers) => AMQPValue::FieldTable(table(headers)),
        Value::Void => AMQPValue::Void,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: tokio_lapin URL APP DELAY BODY");
    let (url, app, delay, body) = (next()?, next()?.parse()?, next()?.parse()?, next()?);
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let message = Message::after(app, delay, body).with_header("customer", "C-4");
    publish(&channel, &message).await?;
    println!("confirmed");
    connection.close(200, "done".into()).await?;
    Ok(())
}
