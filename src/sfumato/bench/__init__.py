"""Speed and memory of whole private training steps, beside those of peers: `sfumato bench`.

cases (the work) -> contenders and peers (the programs) -> measure (timing) -> record (JSON) ->
record_tables, picture and render (presentation).
"""
