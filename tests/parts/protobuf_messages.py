"""Protobuf message classes as protoc generates them. They are built from descriptors, so tests need no protoc::

package shop;
message Order {
  message Item { string sku = 1; int32 n = 2; }
  int64 id = 1; double price = 2; repeated Item items = 3;
}
message Bill { int64 number = 1; double total = 2; }

A second file, ``shop/invoices.proto``, imports ``shop/money.proto``::

message Money { int64 cents = 1; }
message Invoice { int64 number = 1; Money total = 2; }
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
ONE, MANY = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED


def _made() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop/orders.proto", package="shop", syntax="proto3")
    order, bill = file.message_type.add(name="Order"), file.message_type.add(name="Bill")
    item = order.nested_type.add(name="Item")
    item.field.add(name="sku", number=1, type=_FIELD.TYPE_STRING, label=ONE)
    item.field.add(name="n", number=2, type=_FIELD.TYPE_INT32, label=ONE)
    order.field.add(name="id", number=1, type=_FIELD.TYPE_INT64, label=ONE)
    order.field.add(name="price", number=2, type=_FIELD.TYPE_DOUBLE, label=ONE)
    order.field.add(name="items", number=3, type=_FIELD.TYPE_MESSAGE, type_name=".shop.Order.Item", label=MANY)
    bill.field.add(name="number", number=1, type=_FIELD.TYPE_INT64, label=ONE)
    bill.field.add(name="total", number=2, type=_FIELD.TYPE_DOUBLE, label=ONE)
    pool = descriptor_pool.Default()
    pool.Add(file)
    pool.Add(_money())
    pool.Add(_invoices())
    return pool


def _money() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Money").field.add(name="cents", number=1, type=_FIELD.TYPE_INT64, label=ONE)
    return file


def _invoices() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="shop/invoices.proto", package="shop", syntax="proto3", dependency=["shop/money.proto"]
    )
    invoice = file.message_type.add(name="Invoice")
    invoice.field.add(name="number", number=1, type=_FIELD.TYPE_INT64, label=ONE)
    invoice.field.add(name="total", number=2, type=_FIELD.TYPE_MESSAGE, type_name=".shop.Money", label=ONE)
    return file


_pool = _made()
Order: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Order"))
Item: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Order.Item"))
Bill: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Bill"))
Invoice: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("shop.Invoice"))
