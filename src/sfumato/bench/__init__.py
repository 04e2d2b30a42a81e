"""Speed and memory of whole private steps, beside their peers: `sfumato bench`.

cases (what is measured) -> contenders and peers (who) -> measure (how) -> record (JSON) ->
table, picture and render (what people see).
"""
